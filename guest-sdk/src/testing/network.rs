//! The network of a native test, which replaces the executor's.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::http::{HeaderMap, HeaderName, HeaderValue, Opened, Reason, Request};

type Answers = dyn Fn(&Request) -> Result<Answer, Reason>;

thread_local! {
    static NETWORK: RefCell<Option<Rc<MockNetwork>>> = const { RefCell::new(None) };
}

/// The state of a [`Network`].
struct MockNetwork {
    answers: Box<Answers>,
    requests: RefCell<Vec<Request>>,
}

/// The network of the code under test on this thread. While this value lives, it answers all requests. Without a
/// `Network`, the network is off.
///
/// A thread has one `Network` at a time: a new one replaces the previous one. Nothing is sent over a real network.
pub struct Network {
    mock: Rc<MockNetwork>,
}

impl Network {
    /// Makes a network that passes every request to `answers`, which returns the answer or the reason of an error.
    #[must_use = "the network is off again once this is dropped"]
    pub fn answering(answers: impl Fn(&Request) -> Result<Answer, Reason> + 'static) -> Self {
        let mock = Rc::new(MockNetwork { answers: Box::new(answers), requests: RefCell::default() });
        NETWORK.set(Some(Rc::clone(&mock)));
        Self { mock }
    }

    /// The requests so far, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.mock.requests.borrow().clone()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        NETWORK.with_borrow_mut(|current| {
            if current.as_ref().is_some_and(|mock| Rc::ptr_eq(mock, &self.mock)) {
                *current = None;
            }
        });
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("requests", &self.mock.requests).finish_non_exhaustive()
    }
}

/// The answer of a [`Network`] to a request.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    /// Makes an answer without headers and without a body.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self { status, headers: HeaderMap::new(), body: Vec::new() }
    }

    /// Adds a header. The name has to be in lower case.
    ///
    /// # Panics
    /// If the name or the value is not valid in a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        #[expect(clippy::expect_used, reason = "a test with an invalid header should stop there")]
        let value = HeaderValue::from_str(value).expect("the value of a header");
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

/// True if a test has installed a network on this thread.
pub(crate) fn is_on() -> bool {
    NETWORK.with_borrow(Option::is_some)
}

/// The body of an answer, which arrives as one part.
#[derive(Debug)]
pub(crate) struct Body(Option<Vec<u8>>);

impl Body {
    /// The body, and then its end.
    #[allow(clippy::unnecessary_wraps, reason = "a body from the network can break")]
    pub(crate) fn next_part(&mut self) -> Result<Option<Vec<u8>>, Reason> {
        Ok(self.0.take().filter(|body| !body.is_empty()))
    }
}

/// Passes the request to the network of this thread.
pub(crate) fn open(request: &Request) -> Result<Opened, Reason> {
    // `NETWORK` is not borrowed during the answer, because the test's closure may send requests itself.
    let mock = NETWORK.with_borrow(Option::clone).ok_or(Reason::Off)?;
    mock.requests.borrow_mut().push(request.clone());
    let Answer { status, headers, body } = (mock.answers)(request)?;
    Ok(Opened { status, headers, body: Body(Some(body)) })
}
