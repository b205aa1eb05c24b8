"""What a hand does on the page: it points, clicks, drags and types, in a real browser."""

import pytest
from browsing import quiet
from handmade import HOST, KERNEL, LAUNCH, RECORD, build
from test_page_in_a_browser import DRAWN, Page

pytestmark = pytest.mark.browser

#: Where on the screen something that is drawn lies.
PLACE = (
    "((hit, box) => [box.left + hit.x + hit.w / 2, box.top + hit.y + hit.h / 2].map(Math.round))("
    "drawings.get($('lanes')).hits.findLast((one) => one.said[0].startsWith(arguments[0])),"
    " $('lanes').firstElementChild.getBoundingClientRect())"
)
PRESSED = "[...document.querySelectorAll('#roles .role')].filter(b => b.ariaPressed == 'true').map(b => b.textContent)"
PINNED = "!$('tip').hidden && $('tip').classList.contains('pinned')"


@pytest.fixture
def opened(driver, tmp_path):
    """The page of an analysis, on demand; at the end it has said nothing on the console."""
    yield lambda analysis: Page(driver, analysis, tmp_path / "report.html")
    quiet(driver)


@pytest.fixture
def demo(opened, recorded):
    return opened(recorded("demo").analysis)


def click(page, name):
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    page("scrollTo(0, 0)")
    mouse = ActionBuilder(page.driver)
    mouse.pointer_action.move_to_location(*page(PLACE, name)).click()
    mouse.perform()


def test_a_pinned_text_goes_by_its_cross_a_zoom_and_a_click_elsewhere(demo):
    page = demo
    page("choose('h2d_t1', null, false)")
    click(page, "nvjet")
    assert page(PINNED) and "launched by cuLaunchKernelEx at " in page.text("tip")
    page("$('tip').querySelector('.close').click()")
    assert not page(PINNED)
    click(page, "nvjet")
    page("zoomTo([10, 60])")
    assert not page(PINNED)
    page("(view.range = wholeRange(view.picture), drawTimeline())")
    click(page, "nvjet")
    page.driver.find_element("id", "headline").click()
    assert not page(PINNED)
    # another one takes its place at once
    click(page, "nvjet")
    click(page, "cuLaunchKernelEx")
    assert page(PINNED) and page.text("tip").split("\n")[1] == "cuLaunchKernelEx"
    # from a kernel to where else it ran
    click(page, "nvjet")
    page("[...$('tip').querySelectorAll('button')].at(-1).click()")
    assert page("$('find').value").startswith("nvjet") and "in this label" in page.text("found")


def test_an_arrow_whose_end_is_out_of_sight_is_not_drawn(demo):
    page = demo
    arrows = "document.querySelectorAll('#lanes .gap').length"
    page("choose('h2d_t1', null, false)")
    assert page(arrows) == 1
    for range_us, drawn in (([10, 60], 0), ([100, 160], 0), ([170, 220], 1)):
        page(f"(view.range = {range_us}, drawTimeline())")
        assert page(arrows) == drawn, range_us
    # it comes in at the edge where it would cross it, with its head
    page("(view.range = [170, 220], drawTimeline())")
    x1, y1, y2, left = page(
        "((l) => [l.x1, l.y1, l.y2].map(v => v.baseVal.value).concat(view.frame.left))(document.querySelector('#lanes .gap line'))"
    )
    assert x1 == pytest.approx(left, abs=0.1) and y1 < y2
    assert page("document.querySelectorAll('#lanes .gap path').length") == 1


def test_first_calls_are_apart_from_fastest_and_slowest(demo):
    page = demo
    page("choose('h2d_t1', null, false)")
    roles = page("[...document.querySelectorAll('#roles .role')].map(b => b.textContent)")
    assert roles == ["median", "fastest", "slowest", "first call"] and "later calls:" in page.text(
        "roles"
    )
    later = page("DATA.runs[DATA.labels.findIndex(l => l.label == 'h2d_t1')].elapsed.slice(1)")
    for role, at in (("fastest", min(later)), ("slowest", max(later))):
        page(
            f"[...document.querySelectorAll('#roles .role')].find(b => b.textContent == '{role}').click()"
        )
        assert page("view.picture.width") == at and page(PRESSED) == [role]
    page("document.querySelector('#roles .role:last-child').click()")
    assert page(PRESSED) == ["first call"] and page("view.picture.width") > 100 * max(later)
    # nothing below the line has moved
    tops = "[$('lanes'), $('repetitions')].map(e => e.getBoundingClientRect().top)"
    before = page(tops)
    page("document.querySelector('#roles .role').click()")
    assert page(tops) == before


def test_two_are_compared_without_the_first_call_and_buttons_choose_the_second(demo):
    page = demo
    page("choose('h2d_t1', null, false)")
    page("$('compare').click()")
    label = page("DATA.labels.find(l => l.label == 'h2d_t1').roles")
    assert page("[selected.interval, view.other]") == [label["fastest"], label["slowest"]]
    assert page.text("compared").startswith("B is #") and "the slowest" in page.text("compared")
    for role in ("median", "first"):
        page(
            f"[...document.querySelectorAll('#roles .role')].find(b => b.textContent.startsWith('{role}')).click()"
        )
        assert page("[selected.interval, view.other]") == [label["fastest"], label[role]]


def test_gestures_are_in_sight_below_the_picture(demo):
    page = demo
    page("document.querySelectorAll('details').forEach(d => { d.open = false })")
    for gesture in ("Drag", "Double-click", "Shift and drag", "Click", "Escape"):
        assert gesture in page.text("gestures")
    top = page(
        "$('gestures').getBoundingClientRect().top - $('lanes').getBoundingClientRect().bottom"
    )
    assert 0 <= top < 20


def test_the_advice_on_top_is_that_of_the_label_it_is_about(demo):
    page = demo
    page("choose('h2d_t1', null, false)")
    own = page("DATA.labels.find(l => l.label == 'h2d_t1').fixes.map(f => f.sentence)")
    assert (
        page("DATA.screen.label") == "h2d_t1"
        and page("DATA.screen.fixes.map(f => f.sentence)") == own
    )
    assert page("document.querySelectorAll('#fix strong').length") == len(own) == 1
    assert "wrongstream" not in page("whatIsChosen().markdown")
    assert "wrongstream" in page.text("wrong")


def test_the_counts_above_the_labels_add_up_and_lead_to_their_rows(demo):
    page = demo
    links = "[...document.querySelectorAll('#labels-head a')]"
    counts = page(f"{links}.map(a => +a.textContent.match(/\\d+/)[0])")
    assert len(counts) == 4 and sum(counts) == page("DATA.labels.length")
    for at, sign in ((1, "!"), (2, "✓"), (3, "·")):
        page(f"{links}[{at}].click()")
        row = "document.activeElement.closest('li').querySelector('.sign').textContent"
        assert page(row) == sign


def test_the_sum_of_a_stretch_has_headings_and_says_what_it_leaves_out(opened):
    pieces = [(HOST, 9_000)] + [
        piece
        for k in range(14)
        for piece in ((LAUNCH, 500), (("kernel", f"add_{k}"), 1_000 + 10 * k))
    ]
    runs = [[(cause, ns, what) for (cause, what), ns in [*pieces, (KERNEL, 99), (RECORD, 900)]]]
    page = opened(build([("t1", "event", "a.py:1", False, runs)]))
    page("chooseStretch([0, 60])")
    text = page.text("selection")
    for heading in (
        "parts, which add up to it",
        "operations in it, on all streams",
        "CUDA calls in it",
    ):
        assert heading in text
    assert "cudaLaunchKernel\n×14 7.00 us" in text
    # of 15 kernels and a call ten names are listed, and the rest is said
    rest = sorted(1_000 + 10 * k for k in range(14))[:5]
    assert f"and 6 more names: {(sum(rest) + 99) / 1e3:.2f} us" in text
    page("document.querySelector('#selection button').click()")
    assert not page.text("selection") and page("view.chosen") is None


def test_enter_zooms_to_what_was_found_and_the_list_gives_way(demo):
    page = demo
    page("choose('h2d_t1', null, false)")
    page.type("find", "nvjet")
    assert not page("$('found').hidden")
    before = page(DRAWN)
    page.type("find", "\ue007")
    page.until(f"{DRAWN} != '{before}'")
    assert page("$('found').hidden")
    low, high = page("view.range")
    lane = "view.picture.lanes.find(l => l === found.lane)"
    x, d = page(f"[{lane}.x[found.item] / 1e3, {lane}.d[found.item] / 1e3]")
    assert low < x < x + d < high and high - low < 160


def test_a_long_name_is_whole_and_broken_between_its_words(demo):
    name = "void at::native::<unnamed>::elementwise_kernel<at::native::CUDAFunctorOnSelf_add<float>, std::array<char *, (unsigned long)2>>(int, T2, T3)"
    lines = demo("wrap(arguments[0])", name)
    assert "".join(lines) == name and len(lines) == 3 and all(len(line) <= 70 for line in lines)
    assert not any(line[-1].isalnum() for line in lines[:-1])
    assert demo("wrap('x'.repeat(400))") == ["x" * 70] * 5 + ["x" * 50]


def test_a_phone_shows_all_buttons_and_nothing_lies_beside_the_page(demo):
    page = demo
    metrics = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page("choose('h2d_t1', null, false)")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page(wide) <= 0
        page("$('compare').click()")
        assert page(wide) <= 0
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_what_is_drawn_together_is_as_high_as_it_is_busy(opened):
    """A stream that runs a tenth of the time does not look full, however far one is from it."""
    pieces = [piece for _ in range(400) for piece in ((HOST, 9_000), (KERNEL, 1_000))]
    runs = [[(cause, ns, what) for (cause, what), ns in pieces]]
    page = opened(build([("t1", "event", "a.py:1", False, runs)]))
    page("(view.range = [-100_000, 100_000], drawTimeline())")
    heights = page(
        "[...document.querySelectorAll('#lanes .blocks')].filter(p => p.getAttribute('fill') == CAUSE.kernel.colour)"
        ".flatMap(p => [...p.getAttribute('d').matchAll(/h[\\d.]+v([\\d.]+)/g)].map(m => +m[1]))"
    )
    assert heights and max(heights) < 5
