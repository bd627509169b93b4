//! `rankrun web` as those see it who ask it, and who may not (docs/web.md). The page itself is in `web_pages.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_tests::web::{Played, Said, Web, parse};
use rankrun_tests::{
    Job, Running, Tier, in_time, is_loaded, listed_job, monotonic, processes, rankrun, slowness, wait_until,
};
use rustix::process::{Resource, Rlimit, Signal};
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);
/// What is wrong with a rank is shown after this time at most.
const SOON: Duration = Duration::from_secs(2);
/// How many connections the server has at a time.
const PLACES: usize = 64;

/// A job of ranks that say their number and sleep, once all of them are up; and its id.
fn start(ranks: u32, options: &[&str]) -> (Running, String) {
    let script = "echo this is rank $RANKRUN_RANK; echo $$ > $RANKRUN_TEST_DIR/$RANKRUN_RANK.pid; exec sleep 600";
    let count = ranks.to_string();
    let words = ["-n", &count].into_iter().chain(options.iter().copied()).chain(["sh", "-c", script]);
    let running = Job::new(words).tier(Tier::available()[0]).start();
    for rank in 0..ranks {
        running.wait_for_text(&format!("{rank}.pid"));
    }
    let job = running.job_ids().into_iter().next();
    let job = job.or_else(|| wait_until(BOUND, || listed_job(running.front()))).expect("the job has an id");
    (running, job)
}

/// A directory for the directories of jobs.
fn runtime() -> tempfile::TempDir {
    tempfile::tempdir().expect("the temporary directory can be written")
}

fn pid(running: &Running, rank: u32) -> i32 {
    running.wait_for_text(&format!("{rank}.pid")).trim().parse().expect("a pid")
}

/// Ends a job from outside, and proves that nothing is left.
fn end(running: Running) {
    processes::send(running.front(), Signal::TERM);
    running.finish(BOUND);
}

fn status(job: &str) -> Value {
    let mut command = Command::new(rankrun());
    let output = command.args(["status", job, "--json"]).stdin(Stdio::null()).output().expect("rankrun can be started");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// The state of a rank as it stands in the list.
fn state(web: &Web, job: &str, rank: usize) -> String {
    let shown = web.get(&format!("/api/jobs/{job}/ranks?layout=list")).json();
    shown["rows"][rank]["cells"][1].as_str().unwrap_or_default().to_owned()
}

/// Waits until a rank is shown in a state; for no longer than what is wrong may take to be shown.
fn wait_soon(web: &Web, job: &str, rank: usize, wanted: &str) {
    let begun = monotonic();
    // As the page, which asks once a second.
    let shown = wait_until(in_time(SOON), || (state(web, job, rank) == wanted).then_some(()));
    assert!(shown.is_some(), "{} is not {wanted}", state(web, job, rank));
    assert!(is_loaded() || monotonic() - begun < SOON * slowness(), "{wanted} took {:?}", monotonic() - begun);
}

fn has_meter(agent: i32) -> bool {
    processes::children(agent).iter().any(|child| child.name == "rr-meter")
}

/// The sockets of a process.
fn sockets(pid: i32) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = entries.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn ranks_are_shown_with_what_is_wrong_with_them_and_the_job_pays_nothing_later() {
    let (running, job) = start(4, &["--keep-going", "--stopped-timeout", "10m"]);
    let (front, agent) = (running.front(), running.agent());
    let before = sockets(front);
    let web = Web::start(&[&job], &[]);
    assert!(web.address.ends_with(&format!("&job={job}")), "{}", web.address);
    // Other tests list all jobs of this user.
    let is_alone = || (!has_meter(agent) && sockets(front) <= before).then_some(());
    assert!(wait_until(BOUND, is_alone).is_some(), "nobody has asked: {} sockets, {before} before", sockets(front));

    let jobs = web.get("/api/jobs").json();
    let own = jobs["jobs"].as_array().expect("a list").iter().find(|shown| shown["job"] == job).expect("it runs");
    assert_eq!((&own["ranks"], &own["state"]), (&"4".into(), &"running".into()));
    wait_soon(&web, &job, 3, "running");
    assert!(has_meter(agent));
    processes::send(pid(&running, 2), Signal::STOP);
    wait_soon(&web, &job, 2, "stopped");
    processes::send(pid(&running, 2), Signal::CONT);
    wait_soon(&web, &job, 2, "running");
    processes::send(pid(&running, 1), Signal::KILL);
    wait_soon(&web, &job, 1, "failed");
    let shown = web.get(&format!("/api/jobs/{job}/ranks?rank=1&filter=rank%203")).json();
    assert_eq!(
        (&shown["chosen"], &shown["rows"][0]["rank"], &shown["odd"]),
        (&1.into(), &3.into(), &serde_json::json!([]))
    );
    let fields = shown["rank"]["fields"].to_string();
    assert!(fields.contains("failed for") && fields.contains("(SIGKILL)") && fields.contains("dead"), "{fields}");
    let shown = web.get(&format!("/api/jobs/{job}/ranks?sort=odd%20first")).json();
    assert_eq!((&shown["rows"][0]["rank"], &shown["rows"][0]["tone"]), (&1.into(), &"bad".into()));

    let stack = web.get(&format!("/api/jobs/{job}/stack?rank=3"));
    assert!(stack.body.contains("sleep"), "{stack:?}");
    let output = web.get(&format!("/api/jobs/{job}/output?rank=3")).json();
    assert!(output["none"].as_str().is_some_and(|none| none.contains("rankrun attach")), "{output}");
    let attempts = web.get(&format!("/api/jobs/{job}/attempts")).json();
    assert_eq!(
        (&attempts["attempts"][0]["summary"], &attempts["attempts"][0]["ended"]),
        (&"running".into(), &Value::Null)
    );
    assert_eq!(web.get(&format!("/api/jobs/{job}/report")).status, 404);

    let is_as_before = || (!has_meter(agent) && sockets(front) <= before).then_some(());
    assert!(wait_until(BOUND, is_as_before).is_some(), "{} sockets, {before} before", sockets(front));
    let shown = status(&job);
    assert_eq!((&shown["state"], &shown["ranks"][3]["state"]), (&"running".into(), &"running".into()));
    web.end(Signal::TERM);
    end(running);
}

/// A method, a path, the status of the answer, and headers.
type Refused<'a> = (&'a str, &'a str, u16, &'a [(&'a str, &'a str)]);

#[test]
fn without_the_token_and_from_elsewhere_nothing_is_seen() {
    let runtime = runtime();
    let job = Played::start(runtime.path(), 4);
    let web = Web::start(&[], &[("XDG_RUNTIME_DIR", runtime.path())]);
    let port = web.port;
    let right = format!("Bearer {}", web.token);
    let own = format!("127.0.0.1:{port}");
    let ranks = format!("/api/jobs/{}/ranks", job.job);
    let wrong = format!("Bearer {}", "0".repeat(web.token.len()));
    let cookie = format!("token={}", web.token);
    let (host, token) = (("host", own.as_str()), ("authorization", right.as_str()));
    // Where it is right, it is answered: also by the name and the port of a tunnel.
    for host in [own.as_str(), "localhost:1", "[::1]:2", "127.0.0.1"] {
        let said = web.ask("GET", &ranks, &[("host", host), token]);
        assert!(said.status == 200 && said.body.contains("train.py"), "{host}: {said:?}");
    }
    let own_origin = format!("http://{own}");
    let said = web.ask("GET", &ranks, &[host, token, ("origin", &own_origin), ("sec-fetch-site", "same-origin")]);
    assert_eq!(said.status, 200);
    let before = job.asked();

    let proxied = format!("http://evil.example{ranks}");
    let in_query = format!("{ranks}?token={}", web.token);
    let refused: [Refused<'_>; 15] = [
        ("GET", &ranks, 401, &[host]),
        ("GET", &ranks, 401, &[host, ("authorization", &wrong)]),
        ("GET", &ranks, 401, &[host, ("authorization", &right[..right.len() - 1])]),
        ("GET", &ranks, 401, &[host, ("cookie", &cookie)]),
        ("GET", &in_query, 401, &[host]),
        ("GET", "/api/jobs", 401, &[host]),
        ("GET", "/api/nothing", 401, &[host]),
        ("GET", &ranks, 421, &[token]),
        ("GET", &ranks, 421, &[("host", "evil.example"), token]),
        ("GET", &ranks, 421, &[("host", &format!("evil.example:{port}")), token]),
        ("GET", &proxied, 421, &[host, token]),
        ("GET", &ranks, 403, &[host, token, ("origin", "http://evil.example")]),
        ("GET", &ranks, 403, &[host, token, ("origin", "null")]),
        ("GET", &ranks, 403, &[host, token, ("sec-fetch-site", "cross-site")]),
        ("POST", &ranks, 405, &[host, token, ("content-length", "0")]),
    ];
    for (method, path, status, headers) in refused {
        let said = web.ask(method, path, headers);
        assert_eq!(said.status, status, "{method} {path} {headers:?}: {said:?}");
        let is_silent = !["train", &job.job, "node", &web.token].iter().any(|word| said.body.contains(word));
        assert!(is_silent, "{said:?}");
    }
    assert_eq!(job.asked(), before, "the job was not asked");

    // The page says nothing of any job, and no page can be made of it.
    for path in ["/", "/page.css", "/main.js", "/ask.js", "/ranks.js", "/panel.js", "/icon.svg", &ranks] {
        let said = web.ask("GET", path, &[host]);
        let head = said.head.to_lowercase();
        let policies = [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ];
        assert!(policies.iter().all(|policy| head.contains(policy)), "{path}: {head}");
        assert!(!head.contains("access-control") && !head.contains("set-cookie"), "{path}: {head}");
        assert!(!said.body.contains(&web.token) && !said.body.contains("https://"), "{path}");
    }
    assert!(listens_on_loopback_alone(port));
    web.end(Signal::INT);
    job.remove();
}

/// Whether the only socket that listens on the port is bound to 127.0.0.1.
fn listens_on_loopback_alone(port: u16) -> bool {
    let text =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default()).concat();
    let wanted = format!(":{port:04X}");
    let listening = text.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
    let places = listening.filter_map(|line| line.split_whitespace().nth(1)).filter(|place| place.ends_with(&wanted));
    places.collect::<Vec<_>>() == [format!("0100007F{wanted}")]
}

#[test]
fn garbage_is_refused_and_does_no_harm() {
    let runtime = runtime();
    let job = Played::start(runtime.path(), 4);
    let web = Web::start(&[], &[("XDG_RUNTIME_DIR", runtime.path())]);
    let good = || web.get(&format!("/api/jobs/{}/ranks", job.job)).status;
    assert_eq!(good(), 200);
    let mut random = rankrun_tests::Random::new(7);
    let noise: Vec<u8> = (0..100_000).map(|_| random.below(256) as u8).collect();
    let long = vec![b'a'; 100_000];
    let fields: String = (0..1000).map(|number| format!("x{number}: y\r\n")).collect();
    let garbage: Vec<Vec<u8>> = vec![
        noise,
        vec![0; 100_000],
        [b"GET /", &long[..], b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"].concat(),
        [b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", &long[..], b"\r\n\r\n"].concat(),
        format!("GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}\r\n").into_bytes(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: evil.example\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\n host: 127.0.0.1\r\n\r\n".to_vec(),
        b"GET  /  HTTP/9.9\r\n\r\n".to_vec(),
        b"CONNECT evil.example:80 HTTP/1.1\r\nhost: evil.example:80\r\n\r\n".to_vec(),
        b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_vec(),
        b"GET /%00%ff/../..//etc/passwd HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".to_vec(),
        b"GET /\x80\xff HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".to_vec(),
    ];
    for bytes in &garbage {
        let said = web.send(bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert!(said.status == 0 || (400..600).contains(&said.status), "{shown:?}: {said:?}");
        assert_eq!(good(), 200, "after {shown:?}");
    }
    // With the token, too, what is no job and no rank is nothing.
    for path in [
        "/api/jobs/../../etc/passwd",
        "/api/jobs/ffffffff/ranks",
        "/api/jobs/ffffffff/report",
        "/api/x",
        "/api/jobs/00000004/stack",
    ] {
        let said = web.get(path);
        assert_eq!(said.status, 404, "{path}: {said:?}");
    }
    assert_eq!(
        web.get("/api/jobs/00000004/ranks?from=99999999999999999999&count=-1&rank=4294967295&filter=%ff%&sort=x")
            .status,
        200
    );
    web.end(Signal::TERM);
    job.remove();
}

/// A connection that stays open, and asks on it with the token.
fn ask_again(stream: &mut TcpStream, web: &Web, path: &str) -> Said {
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\r\n", web.token);
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    let mut room = [0; 65536];
    loop {
        let count = stream.read(&mut room).expect("it answers");
        assert!(count > 0, "it was closed");
        answer.extend_from_slice(&room[..count]);
        let said = parse(&answer);
        let length = said.head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if length == Some(said.body.len()) {
            return said;
        }
    }
}

#[test]
fn a_thousand_silent_connections_and_slow_ones_delay_nobody() {
    let limit = Rlimit { current: Some(4096), maximum: rustix::process::getrlimit(Resource::Nofile).maximum };
    rustix::process::setrlimit(Resource::Nofile, limit).expect("the hard limit is higher");
    let runtime = runtime();
    let job = Played::start(runtime.path(), 64);
    let web = Web::start(&[], &[("XDG_RUNTIME_DIR", runtime.path())]);
    let path = format!("/api/jobs/{}/ranks", job.job);
    let mut page = web.connect();
    assert_eq!(ask_again(&mut page, &web, &path).status, 200);
    let mut held = Vec::new();
    for number in 0..1000 {
        let mut stream = web.connect();
        // A third is silent, a third begins a request, and a third asks for the page and does not read it.
        let bytes: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ",
            _ => b"GET /main.js HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        };
        // The server may have closed it for another one.
        let _ = stream.write_all(bytes);
        held.push(stream);
        if number % 100 == 99 {
            let begun = monotonic();
            assert_eq!(ask_again(&mut page, &web, &path).status, 200, "on the connection of the page");
            assert_eq!(web.get(&path).status, 200, "on a new connection");
            let took = monotonic() - begun;
            assert!(is_loaded() || took < Duration::from_secs(1) * slowness(), "{took:?}");
        }
    }
    let open = sockets(web.pid());
    assert!(open <= PLACES + 8, "{open} sockets");
    let memory = processes::proportional_memory(web.pid());
    assert!(memory < 64 << 20, "{memory} bytes");
    let threads = std::fs::read_dir(format!("/proc/{}/task", web.pid())).expect("it runs").count();
    assert!(threads <= 10, "{threads} threads");
    // Those who never ask are let go without others that want their place.
    let is_free = || (sockets(web.pid()) < 8).then_some(());
    assert!(wait_until(in_time(Duration::from_secs(20)), is_free).is_some(), "{} sockets", sockets(web.pid()));
    assert_eq!(web.get(&path).status, 200);
    drop(held);
    web.end(Signal::TERM);
    job.remove();
}

#[test]
fn a_signal_ends_it_and_the_job_goes_on() {
    let (running, job) = start(2, &[]);
    let before = sockets(running.front());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        let web = Web::start(&[&job], &[]);
        assert_eq!(web.get(&format!("/api/jobs/{job}/ranks")).json()["state"], "running");
        let port = web.port;
        let status = web.end(signal);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal.as_raw()), "{status}");
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens");
    }
    let is_left_alone = || (sockets(running.front()) <= before).then_some(());
    assert!(wait_until(BOUND, is_left_alone).is_some(), "{} sockets", sockets(running.front()));
    assert_eq!(status(&job)["ranks"][1]["state"], "running");
    // A job that ends is over, and the server goes on.
    let web = Web::start(&[], &[]);
    let ranks = || web.get(&format!("/api/jobs/{job}/ranks")).json();
    assert_eq!(ranks()["is_over"], false);
    end(running);
    let is_over = || (ranks()["is_over"] == true).then_some(());
    assert!(wait_until(BOUND, is_over).is_some(), "{}", ranks());
    assert!(ranks()["title"].as_str().is_some_and(|title| title == "over, exit code 143"), "{}", ranks());
    web.end(Signal::TERM);
}

#[test]
fn a_front_that_is_stopped_is_said_to_be_and_delays_no_other_job() {
    let (running, job) = start(2, &[]);
    let (other, second) = start(1, &[]);
    let web = Web::start(&[], &[]);
    let ranks = |job: &str| web.get(&format!("/api/jobs/{job}/ranks")).json();
    assert_eq!(ranks(&job)["total"], 2);
    processes::send(running.front(), Signal::STOP);
    let is_paused = || ranks(&job)["lines"].to_string().contains("is stopped").then_some(());
    assert!(wait_until(BOUND, is_paused).is_some(), "{}", ranks(&job));
    let begun = monotonic();
    assert_eq!(ranks(&second)["total"], 1);
    assert!(is_loaded() || monotonic() - begun < Duration::from_secs(1) * slowness());
    processes::send(running.front(), Signal::CONT);
    let is_back = || (!ranks(&job)["lines"].to_string().contains("is stopped")).then_some(());
    assert!(wait_until(BOUND, is_back).is_some(), "{}", ranks(&job));
    web.end(Signal::TERM);
    end(running);
    end(other);
}

/// A job that is detached: a shell waits for it.
fn start_detached(options: &str, script: &str, state: &Path) -> (Running, String) {
    let script = format!(
        "cd $RANKRUN_TEST_DIR; J=$($R --detach {options} sh -c '{script}') || exit 99; echo $J > id; exec $R wait $J"
    );
    let running = Job::of_program("sh", ["-c", &script])
        .tier(Tier::available()[0])
        .env("R", rankrun())
        .env("XDG_STATE_HOME", state)
        .env_remove("RANKRUN_JOURNAL")
        .start();
    let job = running.wait_for_text("id").trim().to_owned();
    (running, job)
}

#[test]
fn output_attempts_and_the_report_are_there_while_it_runs_and_after() {
    let script = "echo rank $RANKRUN_RANK attempt $RANKRUN_ATTEMPT; echo bad $RANKRUN_RANK >&2; \
                  until [ -e $RANKRUN_TEST_DIR/go$RANKRUN_ATTEMPT ]; do sleep 0.01; done; echo done; exit $((RANKRUN_RANK + 3))";
    let state = runtime();
    let (running, job) = start_detached("-n 2 --restart 1", script, state.path());
    let web = Web::start(&[&job], &[("XDG_STATE_HOME", state.path())]);
    let get = |what: &str| web.get(&format!("/api/jobs/{job}/{what}")).json();
    let text = |said: &Value| {
        let pieces = said["pieces"].as_array().into_iter().flatten();
        pieces.filter_map(|piece| piece["text"].as_str()).collect::<String>()
    };
    let is_there = || Some(get("output?rank=1")).filter(|said| text(said).contains("bad 1"));
    let first = wait_until(BOUND, is_there).expect("the output is kept");
    assert!(text(&first).contains("rank 1 attempt 0") && !text(&first).contains("rank 0"), "{first}");
    let pieces = first["pieces"].as_array().expect("a list");
    assert!(pieces.iter().any(|piece| piece["from"] == "stderr" && piece["text"] == "bad 1\n"), "{first}");
    running.sign("go0");
    // What follows begins where this ended.
    let next = format!("output?rank=1&at={}", first["at"]);
    let follows = || Some(get(&next)).filter(|said| text(said).contains("rank 1 attempt 1"));
    let second = wait_until(BOUND, follows).expect("it goes on");
    assert!(text(&second).starts_with("done") || text(&second).starts_with("rankrun"), "{second}");
    assert!(text(&second).contains("another attempt begins"), "{second}");
    // The report of an attempt is written beside the start of the next one, and an answer may be as old as 0.7 s.
    let has_failed = |attempts: &Value| {
        let [failed, next] = [&attempts["attempts"][0], &attempts["attempts"][1]];
        failed["summary"].as_str().is_some_and(|summary| summary.contains("failed"))
            && failed["has_report"] == true
            && next["attempt"] == 1
            && next["ended"] == Value::Null
    };
    let attempts = || Some(get("attempts")).filter(has_failed);
    assert!(wait_until(BOUND, attempts).is_some(), "{}", get("attempts"));
    let report = get("report?attempt=0");
    assert!(report["text"].as_str().is_some_and(|text| text.contains("failed: bad")), "{report}");
    running.sign("go1");
    let code = running.finish(BOUND).code;
    // The server has seen it, and another one has not.
    let other = Web::start(&[&job], &[("XDG_STATE_HOME", state.path())]);
    for web in [&web, &other] {
        let get = |what: &str| web.get(&format!("/api/jobs/{job}/{what}")).json();
        let is_over = || (get("ranks")["is_over"] == true).then_some(());
        assert!(wait_until(BOUND, is_over).is_some(), "{}", get("ranks"));
        let title = format!("over, exit code {}", code.unwrap_or_default());
        assert_eq!(get("ranks")["title"], title.as_str());
        assert_eq!(get("attempts")["attempts"].as_array().map(Vec::len), Some(2), "{}", get("attempts"));
        let report = get("report")["text"].to_string();
        assert!(report.contains("failed: bad") && report.contains("attempt 0"), "{report}");
        let output = get("output?rank=0");
        assert!(text(&output).contains("rank 0 attempt 1") && output["is_over"] == true, "{output}");
        let ended = web.get("/api/ended").json();
        assert_eq!((&ended["ended"][0]["job"], &ended["ended"][0]["ranks"]), (&job.as_str().into(), &2.into()));
    }
    web.end(Signal::TERM);
    other.end(Signal::TERM);
}

#[test]
fn what_cannot_be_served_is_refused() {
    let refused = |arguments: &[&str]| {
        let output =
            Command::new(rankrun()).arg("web").args(arguments).stdin(Stdio::null()).output().expect("it starts");
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let web = Web::start(&["--port", "0"], &[]);
    let port = web.port.to_string();
    let (code, text) = refused(&["--port", &port]);
    assert_eq!(code, Some(125));
    assert!(text.contains(&format!("cannot listen on 127.0.0.1:{port}")) && text.contains("without --port"), "{text}");
    for wrong in ["x", "-1", "65536", ""] {
        let (code, text) = refused(&["--port", wrong]);
        assert_eq!(code, Some(2), "{text}");
    }
    let (code, text) = refused(&["no-such-job"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("no job \"no-such-job\" of yours is running"), "{text}");
    web.end(Signal::TERM);
    let free = Web::start(&["--port", &port], &[("XDG_RUNTIME_DIR", Path::new("/nowhere"))]);
    assert_eq!(free.port.to_string(), port, "the port is free again at once");
    free.end(Signal::TERM);
}
