//! The page of `rankrun web` in a real browser: what it shows, how it is used, and what pages of others can do with it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rankrun_tests::web::{Played, Web};
use rankrun_tests::{Browser, Job, Running, Tier, is_loaded, monotonic, processes, rankrun, slowness, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);
/// What is wrong with a rank is shown after this time at most.
const SOON: Duration = Duration::from_secs(2);

/// A detached job whose ranks write a line each 20 ms.
fn start(state: &Path) -> (Running, String) {
    let script = "cd $RANKRUN_TEST_DIR; J=$($R --detach -n 4 --keep-going --stopped-timeout 10m sh -c \
                  'echo $$ > $RANKRUN_RANK.pid; while :; do n=$((n + 1)); echo \"line $n of <b>rank</b> $RANKRUN_RANK\"; sleep 0.02; done') \
                  || exit 99; echo $J > id; exec $R wait $J";
    let running = Job::of_program("sh", ["-c", script])
        .tier(Tier::available()[0])
        .env("R", rankrun())
        .env("XDG_STATE_HOME", state)
        .env_remove("RANKRUN_JOURNAL")
        .start();
    let job = running.wait_for_text("id").trim().to_owned();
    (running, job)
}

/// A directory for the directories of jobs.
fn runtime() -> tempfile::TempDir {
    tempfile::tempdir().expect("the temporary directory can be written")
}

fn pid(running: &Running, rank: u32) -> i32 {
    running.wait_for_text(&format!("{rank}.pid")).trim().parse().expect("a pid")
}

/// Waits for a state of a rank in the list; for no longer than what is wrong may take to be shown.
fn wait_soon(browser: &mut Browser, rank: u32, state: &str) {
    let begun = monotonic();
    browser.wait(&format!("document.querySelector('#rank-{rank}').cells[2].textContent === '{state}'"));
    let took = monotonic() - begun;
    assert!(is_loaded() || took < SOON * slowness(), "{state} took {took:?}");
}

#[test]
fn a_job_is_watched_by_keys_and_its_end_is_shown_with_the_report() {
    let Some(mut browser) = Browser::start(&[]) else { return };
    let state = runtime();
    let (running, job) = start(state.path());
    let web = Web::start(&[&job], &[("XDG_STATE_HOME", state.path())]);
    browser.resize(1280, 800);
    browser.open(&web.address);
    browser.wait("document.querySelectorAll('#list tbody tr').length === 4");
    browser.wait_for("4 ranks on 1 node: 4 running");
    let address = browser.evaluate("location.href").expect("an address");
    assert!(!address.to_string().contains(&web.token), "the token is out of sight: {address}");

    processes::send(pid(&running, 2), Signal::STOP);
    wait_soon(&mut browser, 2, "stopped");
    processes::send(pid(&running, 2), Signal::CONT);
    wait_soon(&mut browser, 2, "running");
    processes::send(pid(&running, 1), Signal::KILL);
    wait_soon(&mut browser, 1, "failed");
    browser.wait("document.querySelector('#rank-1').cells[0].textContent === '!'");

    // The next odd rank, and all that is known of it.
    browser.press("n");
    browser.wait("document.querySelector('#rank-1').classList.contains('selected')");
    browser.press("Enter");
    browser.wait("document.querySelector('#panel h2').textContent === 'Rank 1'");
    browser.wait("document.querySelector('#state').innerText.includes('(SIGKILL)')");
    // Of another rank the output, as text, and more as it comes.
    browser.press("j");
    browser.wait("document.querySelector('#panel h2').textContent === 'Rank 2'");
    browser.press("O");
    browser.wait("document.querySelector('#output pre').textContent.includes('line 1 of <b>rank</b> 2')");
    let length = browser.evaluate("document.querySelector('#output pre').textContent.length").expect("a number");
    browser.wait(&format!("document.querySelector('#output pre').textContent.length > {length} + 100"));
    let lines = "document.querySelector('#output pre').textContent.trim().split('\\n')";
    let is_whole = format!("{lines}.every((line, at) => line === `line ${{at + 1}} of <b>rank</b> 2`)");
    browser.wait(&is_whole);
    browser.press("s");
    // Of the shell, of what it runs just then, or of a process that begins and has no name yet.
    browser.wait(r"/rank 2 on .*: pid \d+/.test(document.querySelector('#stack pre').textContent)");
    browser.press("Escape");
    browser.wait("document.querySelector('#panel').hidden");
    // A filter, and odd ranks first.
    browser.press("/");
    for key in "rank 3".split("") {
        if !key.is_empty() {
            browser.press(key);
        }
    }
    browser.press("Enter");
    browser.wait("[...document.querySelectorAll('#list tbody tr')].map((row) => row.id).join() === 'rank-3'");
    browser.press("Escape");
    browser.wait("document.querySelectorAll('#list tbody tr').length === 4");
    browser.press("!");
    browser.wait("document.querySelector('#list tbody tr').id === 'rank-1'");
    browser.press("v");
    browser.wait("document.querySelectorAll('#grid i').length === 4");
    browser.press("?");
    browser.wait("document.querySelector('#help').open");
    browser.press("Escape");
    browser.evaluate("document.querySelector('#help').close()").expect("it is open or closed");

    // The reload of a page keeps what it looked at.
    browser.call("Page.reload", Value::Object(serde_json::Map::new()));
    browser.wait("document.querySelectorAll('#list tbody tr').length === 4");
    processes::send(pid(&running, 3), Signal::KILL);
    let stop = std::process::Command::new(rankrun()).args(["stop", &job]).output().expect("rankrun can be started");
    assert!(stop.status.success(), "{stop:?}");
    running.finish(BOUND);
    browser.wait_for("over, exit code");
    browser.wait("document.querySelector('#report').textContent.startsWith('rankrun: ')");
    assert_eq!(browser.complaints(), Vec::<String>::new());

    // The server ends, and the page says so.
    browser.evaluate("location.hash = ''").expect("an assignment");
    browser.wait("!document.querySelector('#jobs').hidden");
    web.end(Signal::TERM);
    browser.wait_for("cannot be reached");
    browser.close();
}

#[test]
fn a_page_that_is_hidden_asks_nothing() {
    let Some(mut browser) = Browser::start(&[]) else { return };
    let runtime = runtime();
    let job = Played::start(runtime.path(), 64);
    let web = Web::start(&[&job.job], &[("XDG_RUNTIME_DIR", runtime.path())]);
    browser.open(&web.address);
    browser.wait("document.querySelectorAll('#list tr[data-rank]').length === 64");
    let more = |than: usize| wait_until(BOUND, || (job.asked() > than).then(|| job.asked()));
    assert!(more(job.asked() + 1).is_some(), "it asks while it is seen");
    let hide = |hidden: bool| {
        format!(
            "Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }}); \
             document.dispatchEvent(new Event('visibilitychange')); true"
        )
    };
    browser.evaluate(&hide(true)).expect("it is hidden");
    // One question may be on its way.
    let asked = job.asked() + 1;
    let is_asked = wait_until(Duration::from_secs(4), || (job.asked() > asked).then_some(()));
    assert!(is_asked.is_none(), "nobody sees it");
    browser.evaluate(&hide(false)).expect("it is shown");
    assert!(more(asked + 1).is_some(), "it asks again");
    browser.close();
    web.end(Signal::TERM);
    job.remove();
}

/// The contrast of all texts with what is behind them: the least of the page, with its element.
const LEAST_CONTRAST: &str = r"(() => {
  const parts = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = (value) => { const x = value / 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let least = [99, ''];
  for (const element of document.querySelectorAll('body *')) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== '');
    if (!hasText || element.disabled || element.tagName === 'OPTION' || element.getClientRects().length === 0) continue;
    const [one, other] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < least[0]) least = [contrast, element.outerHTML.slice(0, 200)];
  }
  return least;
})()";

#[test]
fn jobs_of_any_size_fit_windows_of_any_width_in_light_and_dark() {
    let Some(mut browser) = Browser::start(&[]) else { return };
    let runtime = runtime();
    let jobs = [4, 64, 1024].map(|ranks| Played::start(runtime.path(), ranks));
    let web = Web::start(&[], &[("XDG_RUNTIME_DIR", runtime.path())]);
    browser.open(&web.address);
    // Jobs of other tests may be there too.
    browser.wait("document.querySelectorAll('#running :is([href$=\"=00000004\"], [href$=\"=00000064\"], [href$=\"=00001024\"])').length === 3");
    let focused = "document.activeElement.getAttribute('href')";
    browser.press("j");
    browser.wait(&format!("{focused} === document.querySelector('#running a').getAttribute('href')"));
    browser.press("j");
    browser.wait(&format!("{focused} === document.querySelectorAll('#running a')[1].getAttribute('href')"));
    let second = browser.evaluate(focused).expect("a link");
    browser.press("Enter");
    browser.wait(&format!("location.hash === {second}"));
    for (job, ranks) in jobs.iter().zip([4, 64, 1024]) {
        browser.evaluate(&format!("location.hash = 'job={}'", job.job)).expect("an assignment");
        let count = "document.querySelectorAll('#list:not([hidden]) tr[data-rank], #grid:not([hidden]) i').length";
        browser.wait(&format!(
            "{count} === {ranks} && document.querySelector('#job-head').textContent.includes('{}')",
            job.job
        ));
        // Rates are there with the second answer, and who is idle.
        let idle = if ranks > 64 { "'5 idle'" } else { "'idle'" };
        if ranks > 4 {
            browser.wait(&format!("document.body.innerText.includes({idle})"));
        }
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            for (width, height) in [(1280, 800), (360, 740)] {
                browser.resize(width, height);
                for panel in ["", "&rank=3"] {
                    browser.evaluate(&format!("location.hash = 'job={}{panel}'", job.job)).expect("an assignment");
                    browser.wait(&format!("document.querySelector('#panel').hidden === {}", panel.is_empty()));
                    let name = format!("{ranks}-{scheme}-{width}{}", if panel.is_empty() { "" } else { "-rank" });
                    browser.wait(&format!("innerWidth === {width} && document.documentElement.scrollWidth <= {width}"));
                    // Colours change in a moment.
                    browser.wait(&format!("{LEAST_CONTRAST}[0] >= 4.5"));
                    browser.picture(&name);
                }
            }
        }
        browser.resize(1280, 800);
    }
    // In the grid of 1,024: the odd ranks, and others by keys.
    for rank in [5, 6, 50, 70] {
        browser.press("n");
        browser.wait(&format!("new URLSearchParams(location.hash.slice(1)).get('rank') === '{rank}'"));
    }
    browser.press("Escape");
    browser.wait("document.querySelector('#panel').hidden");
    // A line of the window has four nodes of eight ranks.
    for (key, rank) in [("l", 71), ("h", 70), ("j", 102), ("k", 70), ("g", 0), ("G", 1023)] {
        browser.press(key);
        browser.wait(&format!("document.querySelector('#grid .selected').dataset.rank === '{rank}'"));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    browser.close();
    web.end(Signal::TERM);
    jobs.into_iter().for_each(Played::remove);
}

/// A page of somebody else, which tries what a page can try.
fn hostile(port: u16, token: &str) -> String {
    let target = format!("http://127.0.0.1:{port}");
    format!(
        r##"<!doctype html><title>hostile</title><iframe id="frame" src="{target}/"></iframe>
<form id="form" method="post" action="{target}/api/jobs" target="frame"></form>
<script type="module">
const seen = [];
const tries = [
  () => fetch("{target}/api/jobs"),
  () => fetch("{target}/api/jobs", {{ headers: {{ authorization: "Bearer {token}" }} }}),
  () => fetch("{target}/api/jobs", {{ method: "POST", body: "x" }}),
  () => fetch("{target}/main.js"),
  () => import("{target}/main.js"),
];
for (const attempt of tries) {{
  try {{ const answer = await attempt(); seen.push(answer.text ? await answer.text() : "imported"); }} catch (error) {{}}
}}
const blind = await fetch("{target}/api/jobs", {{ mode: "no-cors" }}).then((answer) => answer.type, () => "refused");
try {{ seen.push(document.querySelector("#frame").contentDocument.body.innerText); }} catch (error) {{}}
window.result = {{ seen, blind }};
</script>"##
    )
}

#[test]
fn pages_of_others_see_nothing_even_with_the_token() {
    let Some(mut browser) = Browser::start(&["--host-resolver-rules=MAP evil.example 127.0.0.1"]) else { return };
    let runtime = runtime();
    let job = Played::start(runtime.path(), 4);
    let web = Web::start(&[&job.job], &[("XDG_RUNTIME_DIR", runtime.path())]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it listens").port();
    let page = hostile(web.port, &web.token);
    let is_ended = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_ended);
    let server = thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            let mut request = [0; 4096];
            // Whatever is asked for, this is the answer.
            let _ = stream.read(&mut request);
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                page.len()
            );
            let _ = stream.write_all((head + &page).as_bytes());
        }
    });
    for host in ["127.0.0.1", "evil.example"] {
        browser.open(&format!("http://{host}:{port}/"));
        browser.wait("window.result !== undefined");
        let result = browser.evaluate("window.result").expect("it has tried");
        assert_eq!(result["seen"].as_array().map(Vec::len), Some(0), "{host}: {result}");
    }
    // A name of somebody else that leads here (DNS rebinding): such a page would be of our own origin.
    browser.open(&format!("http://evil.example:{}/#token={}", web.port, web.token));
    browser.wait_for("call this server 127.0.0.1 or localhost");
    assert_eq!(job.asked(), 0, "the job was not asked");
    // A wrong token, and the right one.
    browser.open(&format!("http://127.0.0.1:{}/#token=wrong", web.port));
    browser.wait_for("The token is missing or wrong");
    browser.open("about:blank");
    browser.open(&web.address);
    browser.wait("document.querySelectorAll('#list tr[data-rank]').length === 4");
    browser.close();
    is_ended.store(true, Ordering::Relaxed);
    // The listener looks when somebody connects.
    drop(std::net::TcpStream::connect(("127.0.0.1", port)));
    server.join().expect("it ends");
    web.end(Signal::TERM);
    job.remove();
}
