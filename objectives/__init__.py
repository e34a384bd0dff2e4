"""What counts as better: measurements, limits, goals, fronts. Pure; nothing here starts anything."""
