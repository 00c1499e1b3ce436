"""Doors for other frameworks: each module speaks one framework's protocol and adds no method.

    mteb    `UECSearch` and `UECEncoder`, for the MTEB benchmarks

They need the extra ``integrations``; nothing of the online path imports them.
"""
