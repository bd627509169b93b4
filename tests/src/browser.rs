//! A real browser without a window, driven over its DevTools protocol: a pipe each way, messages of JSON that end with a zero byte.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::processes;
use crate::skip::{in_time, skip};
use crate::time::wait_until;

/// Debian's package has the same name.
const PROGRAM: &str = "chromium-headless-shell";
/// How long something may take to be on the page.
const BOUND: Duration = Duration::from_secs(20);

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: BufReader<ChildStdout>,
    next: u64,
    session: String,
    /// What the page and the browser complained about.
    complaints: Vec<String>,
    is_closed: bool,
    _profile: TempDir,
}

impl Browser {
    /// A browser, or `None` after the calling test has been noted as skipped.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(arguments: &[&str]) -> Option<Browser> {
        let path = env::var_os("PATH").unwrap_or_default();
        if !env::split_paths(&path).any(|directory| directory.join(PROGRAM).is_file()) {
            skip(&format!("the program {PROGRAM} is not there"));
            return None;
        }
        let profile = tempfile::tempdir().expect("the temporary directory can be written");
        // It reads descriptor 3, and writes to descriptor 4. Its sandbox needs what a container does not allow; the pages are ours.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", PROGRAM])
            .args(["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the browser can be started");
        let requests = child.stdin.take().expect("a pipe");
        let messages = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut browser = Browser {
            child,
            requests,
            messages,
            next: 0,
            session: String::new(),
            complaints: Vec::new(),
            is_closed: false,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol, and waits for its result.
    ///
    /// # Panics
    /// If the browser refuses, or ends.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() && !method.starts_with("Browser.") {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.requests.write_all(&bytes).expect("the browser reads");
        loop {
            let mut bytes = Vec::new();
            self.messages.read_until(0, &mut bytes).expect("the browser writes");
            assert_eq!(bytes.pop(), Some(0), "the browser ended");
            let message: Value = serde_json::from_slice(&bytes).expect("it is JSON");
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            let is_complaint = ["Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"];
            if is_complaint.iter().any(|method| message["method"] == *method) {
                self.complaints.push(message["params"].to_string());
            }
        }
    }

    /// Loads a page.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({ "url": address }));
    }

    /// The value of an expression of JavaScript; of its error, the text.
    ///
    /// # Errors
    /// The error of the expression.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value, String> {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        match &result["exceptionDetails"] {
            Value::Null => Ok(result["result"]["value"].clone()),
            error => Err(error.to_string()),
        }
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// If it is not in time.
    pub fn wait(&mut self, expression: &str) {
        let is_true = wait_until(in_time(BOUND), || (self.evaluate(expression) == Ok(Value::Bool(true))).then_some(()));
        if is_true.is_none() {
            let text = self.evaluate("location.href + '\\n' + document.body.innerText");
            panic!("not true: {expression}\n{text:?}\n{:?}", self.complaints);
        }
    }

    /// Waits until the page shows a text.
    pub fn wait_for(&mut self, text: &str) {
        self.wait(&format!("document.body.innerText.includes({})", Value::from(text)));
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyDown", "key": key, "text": text }));
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key }));
    }

    /// The size of the window; a narrow one is that of a phone.
    pub fn resize(&mut self, width: u32, height: u32) {
        let is_phone = width < 500;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", size);
        self.call("Emulation.setTouchEmulationEnabled", json!({ "enabled": is_phone }));
    }

    /// What the user prefers.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Writes a picture of the page to a directory, if the environment names one (`RANKRUN_TEST_PICTURES`).
    ///
    /// # Panics
    /// If the directory cannot be written.
    pub fn picture(&mut self, name: &str) {
        let Some(directory) = env::var_os("RANKRUN_TEST_PICTURES") else { return };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let bytes = from_base64(shot["data"].as_str().unwrap_or_default());
        fs::write(Path::new(&directory).join(format!("{name}.png")), bytes).expect("the directory can be written");
    }

    /// What the page and the browser complained about since this was called last.
    pub fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// Ends the browser, and proves that nothing of it is left.
    ///
    /// # Panics
    /// If a process of it is left.
    pub fn close(mut self) {
        let own = self.child.id().cast_signed();
        let all: Vec<i32> = processes::descendants(own).iter().map(|process| process.pid).collect();
        self.call("Browser.close", json!({}));
        self.is_closed = true;
        let is_gone = wait_until(in_time(BOUND), || self.child.try_wait().expect("it is our child"));
        assert!(is_gone.is_some(), "the browser does not end");
        let left = || all.iter().filter(|pid| processes::is_alive(**pid)).count();
        assert!(
            wait_until(in_time(BOUND), || (left() == 0).then_some(())).is_some(),
            "a process of the browser is left"
        );
    }
}

impl Drop for Browser {
    /// After a failure.
    fn drop(&mut self) {
        if !self.is_closed {
            let own = self.child.id().cast_signed();
            for process in processes::descendants(own) {
                processes::send(process.pid, Signal::KILL);
            }
            // It may have ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(digit).collect();
    let mut bytes = Vec::new();
    for four in digits.chunks(4) {
        let bits = four.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}
