"""The HTML report as text: well-formed, self-contained, accessible, harmless whatever names it is given."""

import base64
import hashlib
import json
import re
import unicodedata
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from nanprobe.findings import Remedy
from nanprobe.reports.html.markup import embed_json, text
from reports.pages import HOSTILE, NAMES, Page, hostile, large, page_of, render

EVENT_HANDLER = re.compile(r"^on[a-z]+$")


@pytest.fixture(scope="module", params=NAMES)
def page(request) -> Page:
    return Page(page_of(request.param))


def test_a_page_is_whole(page):
    assert page.source.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert page.source.endswith("</html>\n")
    assert "train.py" in page.text
    page.source.encode("utf-8")


def test_it_loads_nothing(page):
    for _tag, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "action", "poster", "data"):
                assert value.startswith(("#", "data:image/png;base64,")), (name, value)
            assert not EVENT_HANDLER.match(name), name
            assert "url(" not in (value or "")
    styles = page.source[page.source.index("<style>") : page.source.index("</style>")]
    assert "@import" not in styles and "url(" not in styles
    assert not page.of("link") and not page.of("iframe")


def test_its_policy_allows_its_own_script_and_no_other(page):
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    (script,) = [data for attributes, data in page.scripts if "type" not in attributes]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and policy.startswith("default-src 'none'")


def test_headings_links_and_pictures_can_be_read_aloud(page):
    headings = [tag for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings.count("h1") == 1 and headings[0] == "h1"
    assert all(int(b[1]) - int(a[1]) <= 1 for a, b in pairwise(headings))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(link["href"][1:] in ids for link in page.of("a"))
    assert all(
        attributes["aria-labelledby"] in ids for attributes in page.of("section") if "aria-labelledby" in attributes
    )
    assert all(image["alt"] for image in page.of("img"))
    for svg in page.of("svg"):
        outer = "viewbox" in svg or "y" in svg  # a part of a drawing, inside one that is named
        assert outer or svg.get("aria-hidden") == "true" or (svg["role"] == "img" and svg["aria-label"])
    assert all(cell["scope"] in ("col", "row") for cell in page.of("th"))


def test_data_under_the_pointer_fits_its_picture_and_is_formatted(page):
    for data in page.hover_data():
        assert len(data["cells"]) == len(data["y"])
        for row in data["cells"]:
            assert len(row) == len(data["x"])
            assert all(0 <= cell < len(data["texts"]) for cell in row)
        for told in data["texts"]:
            assert not re.search(r"\d\.\d{5}|\d{7}|nan|inf\b|None", told), told


def test_no_number_is_shown_raw(page):
    ours = page.text.replace("loss is nan, giving up", "")
    assert not re.search(r"\b(nan|inf|None)\b", ours)


@pytest.mark.parametrize("name", ["overflow", "inconclusive", "healthy", "data"])
def test_what_a_page_says(name, check_golden, project):
    page = Page(render(*samples.ALL[name]("/cache/run", project)))
    check_golden("\n".join(line.strip() for line in page.texts if line.strip()).replace(project, "/project") + "\n")


@pytest.mark.parametrize("name", ["transformer", "conflicting"])
def test_what_a_sweeps_page_says(name, check_golden):
    check_golden("\n".join(line.strip() for line in Page(page_of(f"sweep {name}")).texts if line.strip()) + "\n")


def test_hostile_names_are_text():
    page = Page(render(*hostile(HOSTILE)))
    assert "<script>window.hurt=1</script>\"'`<img src=x onerror='window.hurt=2'>&amp;" in page.text
    assert not any("onerror" in attributes for attributes in page.of("img"))
    page.source.encode("utf-8")
    assert not any(unicodedata.category(c) == "Cc" and c != "\n" for c in page.source)
    assert "\u202e" not in page.source and any("window.hurt" in data for _, data in page.scripts)


@given(st.text(min_size=1, max_size=12).map(lambda word: f"x{word}x".replace("`", "").replace(".", "")))
@settings(max_examples=40, deadline=None)
def test_no_name_changes_the_shape_of_a_page(word):
    plain, strange = (Page(render(*hostile(each))) for each in ("x", word))
    assert strange.shape == plain.shape


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_embedded_data_comes_back_and_ends_no_script(value):
    embedded = embed_json(value)
    assert not set("<>&") & set(embedded) and "\u2028" not in embedded
    assert json.loads(embedded) == json.loads(json.dumps(value))


@given(st.text())
def test_text_comes_back(value):
    (found,) = [Page(f"<p>{text('x' + value)}</p>").texts or [""]]
    readable = "".join(c for c in value if c.isprintable())
    got = "".join(found)[1:]
    assert "".join(c for c in got if c != "\ufffd" and c.isprintable()) == readable.replace("\ufffd", "")


def test_three_hundred_layers_stay_small_and_are_all_there():
    page = Page(render(large(300, 50)))
    assert len(page.source) < 900_000
    first = next(data for data in page.hover_data() if len(data["y"]) == 300)
    assert len(first["x"]) == 50 and first["y"][299] == "model.layers.49.down_proj.weight"
    assert "299" not in page.text or "more layer" in page.text


@pytest.mark.parametrize(("layers", "steps"), [(3, 2000), (1200, 3), (1, 1), (2, 0)])
def test_long_runs_and_large_models_are_drawn_in_pieces(layers, steps):
    page = Page(render(large(layers, steps)))
    assert len(page.source) < 1_300_000
    assert all(len(data["x"]) <= 2000 and len(data["y"]) <= 400 for data in page.hover_data())


def test_a_tried_remedy_says_what_came_of_it(tmp_path):
    run, answer = samples.overflow(tmp_path)
    tested = replace(answer.verdict, remedies=(Remedy("do `this`", True, 50), Remedy("or that", False, 12)))
    page = Page(render(run, replace(answer, verdict=tested, findings=(tested,))))
    assert "tried over 50 steps: it works" in page.text and "tried over 12 steps: no help" in page.text
    assert "this" in page.texts


def test_remedies_that_were_tried_stand_with_their_losses_and_their_lines():
    page = Page(page_of("tried"))
    answer = page.text[: page.text.index("From origin" if "From origin" in page.text else "Proven remedies")]
    assert "1 of 2 remedies tried helped (4 runs of the amp stage, 31.5 s); the budget was spent." in page.text
    for told in ("FP32 island", "0.1%", "1.08×", "+ h = h.float() * self.k", "step 12 is still not finite"):
        assert told in page.text, told
    assert "Lower" not in answer, "what was refused is no advice"
    before_after = next(data for data in page.hover_data() if any("after 2.31" in text for text in data["texts"]))
    assert before_after["texts"][0] == "fp32 2.31 · before 2.31 · after 2.31"
