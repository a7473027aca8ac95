"""What a router runs whose kernel translates: nft rules, and the settings of a real miniupnpd. Pure."""

from __future__ import annotations

from ipaddress import IPv4Network

from shardp2p.lab.network.commands import LAN_DEVICE, WAN_DEVICE
from shardp2p.lab.network.description import Unsolicited

_TABLE = "shardp2p"


def nft_rules(unsolicited: Unsolicited) -> str:
    """A router like the NAT kind `cone`, with the chains that miniupnpd fills."""
    refuse = f'iifname "{WAN_DEVICE}" meta l4proto tcp reject with tcp reset' if unsolicited == "reset" else ""
    return f"""
table inet {_TABLE} {{
  chain miniupnpd {{ }}
  chain prerouting_miniupnpd {{ }}
  chain postrouting_miniupnpd {{ }}
  chain forward {{
    type filter hook forward priority 0; policy drop;
    jump miniupnpd
    iifname "{LAN_DEVICE}" oifname "{WAN_DEVICE}" accept
    ct state established,related accept
    {refuse}
  }}
  chain input {{
    type filter hook input priority 0; policy drop;
    iifname {{ "lo", "{LAN_DEVICE}" }} accept
    ct state established,related accept
    {refuse}
  }}
  chain prerouting {{
    type nat hook prerouting priority -100; policy accept;
    jump prerouting_miniupnpd
  }}
  chain postrouting {{
    type nat hook postrouting priority 100; policy accept;
    jump postrouting_miniupnpd
    oifname "{WAN_DEVICE}" masquerade
  }}
}}
"""


def miniupnpd_settings(lan: IPv4Network) -> str:
    """The settings file of a miniupnpd that opens any port above 1023 for whoever asks, to himself alone."""
    return f"""ext_ifname={WAN_DEVICE}
listening_ip={LAN_DEVICE}
port=0
ipv6_disable=yes
enable_upnp=yes
enable_natpmp=no
secure_mode=yes
friendly_name=shardp2p lab
upnp_table_name={_TABLE}
upnp_nat_table_name={_TABLE}
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow 1024-65535 {lan} 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""
