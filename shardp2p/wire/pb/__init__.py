"""Generated from proto/shardp2p/v1 by `make proto`; do not edit. Only wire.codec* may import this."""
