"""Events as bytes, and back: payloads, classes, upcasts, headers, and a message as a row."""
