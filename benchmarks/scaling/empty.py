"""A route that only reads its body, served by bare uvicorn: the cost of the framework alone."""

from __future__ import annotations

import os

import uvicorn
from fastapi import FastAPI, Request

app = FastAPI()


@app.post("/translate")
async def translate(request: Request) -> dict[str, str]:
    """Read the body and do nothing."""
    await request.body()
    return {}


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(os.environ["ANCHORAGE_PORT"]),
        loop="uvloop",
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
    )
