"""Requests in, answers out: JSON lines (see peer.py)."""

import json


class RequestError(Exception):
    """A request that cannot be served; its text is the sentence of the answer."""


def sentence_of(error):
    """The error in one line, with its kind where the text alone would not say it."""
    text = " ".join(str(error).split())
    if isinstance(error, RequestError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def serve(requests, answers, make_session):
    """Answers every line until {"quit": true} or the end of the input. The session is made by the
    first request that needs one."""
    session = None
    for line in requests:
        if not line.strip():
            continue
        try:
            request = parse(line)
            if "quit" in request:
                answer = {}
            else:
                session = session or make_session()
                answer = handle(session, request)
        except Exception as error:  # whatever the libraries raise becomes a sentence
            request, answer = {}, {"error": sentence_of(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if "quit" in request:
            break
    if session is not None:
        session.close()


def parse(line):
    try:
        request = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"request: expected a JSON object, found {line.strip()[:80]!r}: {error}")
    if not isinstance(request, dict):
        raise RequestError(f"request: expected a JSON object, found {line.strip()[:80]!r}")
    return request


def handle(session, request):
    if "setup" in request:
        return session.setup(request["setup"])
    if "release" in request:
        return session.release()
    if "run" in request:
        return session.run(request["run"], request.get("pass"))
    raise RequestError(f"request: expected setup, run, release or quit, found {sorted(request)}")
