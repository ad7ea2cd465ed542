"""Pure thought: topology, headroom, plans and changes; standard library only, no clock, log or IO."""
