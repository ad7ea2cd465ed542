"""What operators ask for: overrides, pause, catch-ups, schedule, submissions. The type to know is `Overrides`."""
