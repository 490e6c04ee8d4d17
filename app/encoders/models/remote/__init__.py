"""Models that run on other machines, behind the OpenAI API.

The operator names the base URLs, and the service calls no other address: requests go through
httpcore2, the connection pool beneath httpx2, which follows no redirect, reads no proxy from the
environment, and stores no cookie. An answer becomes vectors or an AnchorageError; the endpoint's
own text only reaches the log.
"""
