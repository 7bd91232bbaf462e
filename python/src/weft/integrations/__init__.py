"""weft in the frameworks that people train with. Each module needs its framework, and nothing else does."""
