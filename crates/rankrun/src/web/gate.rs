//! Who may ask (docs/web.md#what-protects-it). Pure.
//!
//! Any program of this machine can connect to a loopback port, and so can any page that a browser shows: by a form, by a script, or by a name that
//! resolves to 127.0.0.1 (DNS rebinding). A request is answered only if
//!
//! * W-1: it calls this server by a name of this machine's loopback. A page of another origin has that origin's name in `Host`.
//! * W-2: it comes from no page, or from a page of this server (`Origin`, `Sec-Fetch-Site`).
//! * W-3: if it asks for anything of a job, it has the token in a header. A browser adds no such header by itself: there is no cookie.

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use subtle::ConstantTimeEq as _;

/// Bytes of a token.
const TOKEN: usize = 20;
/// What browsers say about where a request comes from.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What somebody must know to be answered: 160 random bits.
#[derive(Clone)]
pub(super) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    pub(super) fn generate() -> std::io::Result<Token> {
        let mut bytes = [0; TOKEN];
        let mut filled = 0;
        while filled < TOKEN {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// The time that this takes says nothing about how much of it is right.
    fn is(&self, other: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(other).into()
    }
}

/// Why a request is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    Method,
    Host,
    Origin,
    Token,
}

impl Refusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Refusal::Method => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::Host => StatusCode::MISDIRECTED_REQUEST,
            Refusal::Origin => StatusCode::FORBIDDEN,
            Refusal::Token => StatusCode::UNAUTHORIZED,
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Refusal::Method => "only GET is answered",
            Refusal::Host => "call this server 127.0.0.1 or localhost",
            Refusal::Origin => "a page of another origin may not ask",
            Refusal::Token => "the token is missing or wrong",
        }
    }
}

/// Whether anybody is answered at all: W-1 and W-2.
pub(super) fn check_place(parts: &Parts) -> Result<(), Refusal> {
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return Err(Refusal::Method);
    }
    // A request to a proxy names another server in its target.
    if parts.uri.authority().is_some() {
        return Err(Refusal::Host);
    }
    let host = only(&parts.headers, &HOST).filter(|host| is_loopback(host)).ok_or(Refusal::Host)?;
    if parts.headers.contains_key(ORIGIN) {
        let origin = only(&parts.headers, &ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
        if origin != Some(host) {
            return Err(Refusal::Origin);
        }
    }
    Ok(())
}

/// Whether something of a job may be said: W-2 and W-3.
pub(super) fn check_token(parts: &Parts, token: &Token) -> Result<(), Refusal> {
    // A link of another page may lead to ours, which shows nothing without the token; what our page asks for comes from itself.
    let site = parts.headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return Err(Refusal::Origin);
    }
    let given = only(&parts.headers, &AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    match given.is_some_and(|given| token.is(given.as_bytes())) {
        true => Ok(()),
        false => Err(Refusal::Token),
    }
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    first.to_str().ok().filter(|_| values.next().is_none())
}

/// Whether this is a name of loopback. Any port: that of `ssh -L` is chosen on another machine.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix("[::1]") {
        Some(rest) => ("::1", rest),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = matches!(name, "127.0.0.1" | "::1") || name.eq_ignore_ascii_case("localhost");
    is_name && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("it is valid").into_parts().0
    }

    #[test]
    fn only_names_of_loopback_are_answered() {
        for host in ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "LOCALHOST:65535", "[::1]:80", "[::1]"] {
            assert_eq!(check_place(&parts("GET", "/", &[("host", host)])), Ok(()), "{host}");
        }
        let others = [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "127.0.0.1:8080:1",
            "127.0.0.1:",
            "127.0.0.1:+80",
            "127.0.0.1:99999",
            "0.0.0.0:80",
            "127.0.0.2",
            "[::1]evil",
            "[::1]:x",
            "::1",
            "localhost@evil",
            " localhost",
        ];
        for host in others {
            assert_eq!(check_place(&parts("GET", "/", &[("host", host)])), Err(Refusal::Host), "{host}");
        }
        assert_eq!(check_place(&parts("GET", "/", &[])), Err(Refusal::Host));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check_place(&parts("GET", "/", &two)), Err(Refusal::Host));
        let proxied = parts("GET", "http://evil.example/", &[("host", "localhost")]);
        assert_eq!(check_place(&proxied), Err(Refusal::Host));
    }

    #[test]
    fn a_page_of_another_origin_is_not_answered() {
        let from = |origin: &str| check_place(&parts("GET", "/", &[("host", "127.0.0.1:8080"), ("origin", origin)]));
        assert_eq!(from("http://127.0.0.1:8080"), Ok(()));
        for origin in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:8081",
            "https://127.0.0.1:8080",
            "http://localhost:8080",
            "",
        ] {
            assert_eq!(from(origin), Err(Refusal::Origin), "{origin}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "DANCE"] {
            let parts = parts(method, "/", &[("host", "127.0.0.1:8080")]);
            assert_eq!(check_place(&parts), Err(Refusal::Method), "{method}");
        }
    }

    #[test]
    fn nothing_of_a_job_is_said_without_the_token() {
        let token = Token::generate().expect("random bytes");
        assert_eq!(token.text().len(), 2 * TOKEN);
        assert_ne!(token.text(), Token::generate().expect("random bytes").text());
        let ask = |headers: &[(&str, &str)]| check_token(&parts("GET", "/api/jobs", headers), &token);
        let right = format!("Bearer {}", token.text());
        assert_eq!(ask(&[("authorization", &right)]), Ok(()));
        assert_eq!(ask(&[("authorization", &right), ("sec-fetch-site", "same-origin")]), Ok(()));
        for site in ["cross-site", "same-site", "x"] {
            assert_eq!(ask(&[("authorization", &right), ("sec-fetch-site", site)]), Err(Refusal::Origin), "{site}");
        }
        let short = &right[..right.len() - 1];
        let long = format!("{right}0");
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            token.text(),
            short,
            &long,
            "Basic abc",
            "Bearer 0000000000000000000000000000000000000000",
        ] {
            assert_eq!(ask(&[("authorization", wrong)]), Err(Refusal::Token), "{wrong}");
        }
        assert_eq!(ask(&[]), Err(Refusal::Token));
        assert_eq!(ask(&[("authorization", &right), ("authorization", "Bearer x")]), Err(Refusal::Token));
        assert_eq!(ask(&[("cookie", &right)]), Err(Refusal::Token));
    }
}
