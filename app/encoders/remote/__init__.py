"""Models that run on other machines, behind the OpenAI API or the TEI API.

The operator names the base URLs. The service does not trust an endpoint:

- It calls no other address. Requests go through httpcore2, the connection pool beneath httpx2,
  which follows no redirect, reads no proxy from the environment, and stores no cookie.
- The deadline applies to each read and write of the socket, so a slow stream of bytes cannot
  outlast it.
- An answer becomes vectors or an AnchorageError. The endpoint's own text only reaches the log.
"""
