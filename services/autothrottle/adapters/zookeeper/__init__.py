"""Access to ZooKeeper through kazoo, shared by the Kafka backend for ZooKeeper mode and by our own state.

The type to know is `ZnodeMirror` (`mirror`), which keeps copies of znodes fresh with watches. `session` connects,
`client` and `security` secure the sessions and our znodes, `bulk` reads many znodes per request, `codec` converts their
contents, and `paths` names them.
"""
