//! Connections, and HTTP on them.
//!
//! A client costs a bounded amount, and delays no other client: the number of connections is bounded, and a connection without the token is
//! closed after some seconds, or when a new connection needs its place.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

use super::answer::Desk;
use super::gate::{self, Refusal, Token};
use super::routes::{self, Asked};

/// Connections at a time. A browser opens six at most.
const MOST: usize = 64;
/// How long the header of a request may take.
const HEADER_BOUND: Duration = Duration::from_secs(5);
/// How long a connection without the token may last, and how long its last answer may take after that.
const STRANGER_BOUND: Duration = Duration::from_secs(10);
const LEAVES: Duration = Duration::from_secs(1);
/// A connection with the token on which nothing was asked for so long may be replaced.
const IDLE: Duration = Duration::from_secs(15);
/// Bytes of a request's header, and how many fields it may have.
const HEADER: usize = 16 << 10;
const FIELDS: usize = 64;
/// How long to wait when no descriptor is left for a connection.
const RETRY: Duration = Duration::from_millis(100);
/// How often jobs that nobody looks at are let go, while there are some.
const SWEEP: Duration = Duration::from_secs(2);
/// What a connection without a place is told.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What is sent with each answer: a browser loads nothing for it but from here, shows it in no frame, keeps it nowhere, and tells nobody its
/// address.
const HEADERS: [(header::HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// What is served.
pub(super) struct Server {
    token: Token,
    desk: Arc<Desk>,
    places: RefCell<BTreeMap<u64, Place>>,
    next: Cell<u64>,
}

/// A connection.
struct Place {
    task: AbortHandle,
    visitor: Rc<Visitor>,
}

/// Who is connected.
struct Visitor {
    has_token: Cell<bool>,
    is_busy: Cell<bool>,
    asked: Cell<Instant>,
}

impl Server {
    pub(super) fn new(token: Token, desk: Desk) -> Rc<Server> {
        Rc::new(Server { token, desk: Arc::new(desk), places: RefCell::default(), next: Cell::new(0) })
    }

    /// Serves all who connect. Never returns.
    pub(super) async fn run(self: Rc<Server>, listener: TcpListener) {
        spawn_local(Rc::clone(&self).sweep());
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.admit(stream),
                // The connection is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    /// Lets go of jobs that nobody looks at.
    async fn sweep(self: Rc<Server>) {
        loop {
            self.desk.wait_for_a_job().await;
            while self.desk.sweep() {
                sleep(SWEEP).await;
            }
        }
    }

    fn admit(self: &Rc<Server>, stream: TcpStream) {
        if !self.make_room() {
            // It is closed with or without these words.
            let _ = stream.try_write(NO_PLACE);
            return;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let visitor = Rc::new(Visitor {
            has_token: Cell::new(false),
            is_busy: Cell::new(false),
            asked: Cell::new(Instant::now()),
        });
        let leave = Leave { server: Rc::clone(self), number };
        let task = spawn_local(talk(Rc::clone(self), stream, Rc::clone(&visitor), leave)).abort_handle();
        self.places.borrow_mut().insert(number, Place { task, visitor });
    }

    /// Ends a connection if there is no room for another: the oldest without the token, or one that was idle for long.
    fn make_room(&self) -> bool {
        let places = self.places.borrow();
        if places.len() < MOST {
            return true;
        }
        let stranger = places.iter().find(|(_, place)| !place.visitor.has_token.get());
        let is_idle = |visitor: &Visitor| !visitor.is_busy.get() && visitor.asked.get().elapsed() >= IDLE;
        let ended = stranger.or_else(|| places.iter().find(|(_, place)| is_idle(&place.visitor)));
        let Some((number, place)) = ended else { return false };
        place.task.abort();
        let number = *number;
        drop(places);
        // The task ends a moment later.
        self.places.borrow_mut().remove(&number);
        true
    }

    async fn answer(&self, request: Request<Incoming>, visitor: &Visitor) -> Response<Whole> {
        let (parts, _) = request.into_parts();
        if let Err(refusal) = gate::check_place(&parts) {
            return refused(refusal);
        }
        let path = parts.uri.path();
        if path.starts_with("/api/") {
            if let Err(refusal) = gate::check_token(&parts, &self.token) {
                return refused(refusal);
            }
            visitor.has_token.set(true);
            visitor.asked.set(Instant::now());
        }
        match routes::route(path, parts.uri.query().unwrap_or_default()) {
            None => plain(StatusCode::NOT_FOUND, "there is no such page"),
            Some(Asked::Page(kind, text)) => respond(StatusCode::OK, kind, Bytes::from_static(text.as_bytes())),
            Some(asked) => {
                visitor.is_busy.set(true);
                let (status, value) = Arc::clone(&self.desk).answer(asked).await;
                visitor.is_busy.set(false);
                visitor.asked.set(Instant::now());
                respond(status, "application/json", value.to_string().into())
            }
        }
    }
}

/// Frees the place of a connection, however its task ends.
struct Leave {
    server: Rc<Server>,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Ok(mut places) = self.server.places.try_borrow_mut() {
            places.remove(&self.number);
        }
    }
}

async fn talk(server: Rc<Server>, stream: TcpStream, visitor: Rc<Visitor>, leave: Leave) {
    let of_service = Rc::clone(&visitor);
    let service = service_fn(move |request| {
        let (server, visitor) = (Rc::clone(&server), Rc::clone(&of_service));
        async move { Ok::<_, Infallible>(server.answer(request, &visitor).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_BOUND).max_buf_size(HEADER).max_headers(FIELDS);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    if timeout(STRANGER_BOUND, connection.as_mut()).await.is_err() {
        if visitor.has_token.get() {
            // What is wrong with a connection is the client's business.
            let _ = connection.await;
        } else {
            connection.as_mut().graceful_shutdown();
            // It has had its time.
            let _ = timeout(LEAVES, connection).await;
        }
    }
    drop(leave);
}

fn refused(refusal: Refusal) -> Response<Whole> {
    plain(refusal.status(), refusal.text())
}

fn plain(status: StatusCode, text: &'static str) -> Response<Whole> {
    respond(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn respond(status: StatusCode, kind: &'static str, bytes: Bytes) -> Response<Whole> {
    let mut response = Response::new(Whole(Some(bytes)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A body that is there as a whole.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
}
