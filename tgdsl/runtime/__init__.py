"""Programs on a device. Nothing here knows a graph."""
