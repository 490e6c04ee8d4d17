"""Heads in ONNX files, which run in separate processes."""

#: most bytes of one message to or from an ONNX process: a head's file, rows or outputs
MOST_MESSAGE_BYTES = 80 * 2**20
#: most rows in one message
MOST_MESSAGE_ROWS = 1_024
