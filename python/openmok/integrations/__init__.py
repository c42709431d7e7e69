"""The layer inside other libraries; nothing is changed there before it is asked for."""
