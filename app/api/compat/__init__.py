"""Routes in other services' protocols: OpenAI, text-embeddings-inference and Open Inference."""
