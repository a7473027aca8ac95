"""`python -m shardp2p` is the same as `shardp2p`."""

from shardp2p.cli.main import main

main()
