"""A route that does nothing but read its body, served as bare as uvicorn serves: what the framework alone costs."""

from __future__ import annotations

import os

import uvicorn
from fastapi import FastAPI, Request

app = FastAPI()


@app.post("/translate")
async def translate(request: Request) -> dict[str, str]:
    """Nothing."""
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
