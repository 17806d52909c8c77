"""What of a request is read and compared."""

from io import BytesIO
from typing import Any

import pytest
from flask import Response, abort, jsonify, request

from outboxkit.errors import ConfigurationError
from outboxkit.http import problems
from tests.unit.http.flask_door import KEY, Door, twice


def test_the_body_can_still_be_read(entrance: Door):
    def view() -> Any:
        return jsonify(form=request.form, files={name: found.read().decode() for name, found in request.files.items()})

    first, _ = twice(
        entrance.view(view),
        data=b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--b\r\n'
        b'Content-Disposition: form-data; name="f"; filename="x"\r\n\r\nfile\r\n--b--\r\n',
        content_type="multipart/form-data; boundary=b",
    )
    assert first.get_json() == {"form": {"a": "1"}, "files": {"f": "file"}}


def test_a_body_that_was_read_before_the_view_is_refused(entrance: Door):
    entrance.app.before_request(lambda: None if request.form.get("csrf") != "" else abort(400))
    client = entrance.view(lambda: "done")
    with pytest.raises(ConfigurationError, match="the body was read before the view"):
        client.post("/do", headers=KEY, data={"a": "1"})
    assert client.post("/do", headers=KEY, json={"a": 1}).status_code == 200, "what is no form stays to be read"


def test_a_body_that_was_kept_before_the_view_is_not(entrance: Door):
    entrance.app.before_request(lambda: bool(request.get_data()) and None)
    client = entrance.view(lambda: request.form["a"])
    twice(client, data={"a": "1"})
    assert client.post("/do", headers=KEY, data={"a": "2"}).status_code == 422


@pytest.mark.parametrize(("own", "limit"), [(None, 10), (100, 10), (10, 100)])
@pytest.mark.parametrize("length", [True, False])
def test_the_smaller_limit_of_a_body_counts(entrance: Door, own: int | None, limit: int, length: bool):
    entrance.app.config["MAX_CONTENT_LENGTH"] = own
    client = entrance.view(lambda: Response(request.get_data()), max_body=limit)

    def post(size: int) -> Any:
        body: dict[str, Any] = {"data": b"x" * size}
        if not length:
            body = {
                "input_stream": BytesIO(b"x" * size),
                "environ_overrides": {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""},
                "content_type": "text/plain",
            }
        return client.post("/do", headers={"Idempotency-Key": f"k{size}"}, **body)

    assert post(10).get_data() == b"x" * 10
    assert (post(11).status_code, post(11).content_type) == (413, problems.MEDIA_TYPE)


def test_a_body_without_a_length_is_not_read_to_its_end(entrance: Door):
    body = BytesIO(b"x" * 1_000_000)
    client = entrance.view(lambda: "never", max_body=10)
    environment = {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    given: dict[str, Any] = {"input_stream": body, "environ_overrides": environment}
    assert client.post("/do", headers=KEY, **given).status_code == 413
    assert body.tell() < 100


@pytest.mark.parametrize("body", [b"", b"half"])
def test_a_body_that_is_cut_off_is_a_bad_request(entrance: Door, body: bytes):
    """gunicorn ends it as if it were whole, and tells that nothing comes behind it."""
    client = entrance.view(lambda: Response(request.get_data()))
    environment = {"wsgi.input_terminated": True, "CONTENT_LENGTH": "8"}
    answer = client.post("/do", headers=KEY, input_stream=BytesIO(body), environ_overrides=environment)
    assert answer.status_code == 400


def test_what_a_preprocessor_takes_out_of_the_path_counts(entrance: Door):
    entrance.app.url_value_preprocessor(lambda _, values: values.pop("language") and None if values else None)
    entrance.app.add_url_rule("/<language>/do", view_func=entrance.idempotent()(lambda: "done"), methods=["POST"])
    client = entrance.app.test_client()
    assert [client.post(path, headers=KEY).status_code for path in ("/de/do", "/de/do", "/en/do")] == [200, 200, 422]


def test_apps_of_two_prefixes_are_two(entrance: Door):
    client = entrance.view(lambda: request.root_path)
    answers = [client.post("/do", headers=KEY, base_url=f"http://localhost{root}") for root in ("/a", "/b", "/a")]
    assert ["Idempotency-Replayed" in answer.headers for answer in answers] == [False, False, True]
    assert entrance.keys == 2
