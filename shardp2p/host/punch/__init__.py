"""Punching holes: two peers behind routers get a straight connection by dialling each other at the same moment.

Start reading at `puncher.Puncher`, which speaks DCUtR (docs/protocols/punch.md) over a relayed connection. Pure are
`attempt` (what to send and to dial when), `mapping` (what our router makes of the port we listen on), `dialable` (whom
we dial at all) and `schedule` (when to try again). Nothing here knows how a relayed connection came about, nor who
moves to the better path.
"""
