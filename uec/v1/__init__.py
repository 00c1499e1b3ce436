"""Generated stubs of the gRPC interface; ``proto/generate.py`` makes them from ``proto/uec/v1``."""
