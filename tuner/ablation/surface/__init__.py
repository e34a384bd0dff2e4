"""What speculation costs by depth and acceptance, drawn with the engine's synthetic acceptance."""
