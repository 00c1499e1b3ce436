"""The gRPC service: one index behind ``uec.v1.Retrieval``, with health and reflection.

Modules in reading order:

    options         limits and sizes
    convert         messages to records and back; every check of a request
    gate            who may compute, and when work is no longer wanted
    servicer        the four methods
    health          ready or not
    interceptors    errors to statuses, one log line a call
    app             bind, load, warm up, serve, drain
"""
