//! A network of the test's own, in place of the executor's.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::http::{Answer, HeaderMap, HeaderName, HeaderValue, Reason, Request};

type Answers = dyn Fn(&Request) -> Result<Answer, Reason>;

thread_local! {
    static NETWORK: RefCell<Option<Rc<Stage>>> = const { RefCell::new(None) };
}

struct Stage {
    answers: Box<Answers>,
    requests: RefCell<Vec<Request>>,
}

/// Answers the requests of this thread, for as long as it lives. Without one, the network is off.
///
/// There is one at a time: a new one takes the place of the one before. Nothing is sent anywhere.
pub struct Network {
    stage: Rc<Stage>,
}

impl Network {
    /// Every request is given to `answers`, which gives the answer or why there is none.
    #[must_use = "the network is off again once this is dropped"]
    pub fn answering(answers: impl Fn(&Request) -> Result<Answer, Reason> + 'static) -> Self {
        let stage = Rc::new(Stage { answers: Box::new(answers), requests: RefCell::default() });
        NETWORK.set(Some(Rc::clone(&stage)));
        Self { stage }
    }

    /// The requests so far, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.stage.requests.borrow().clone()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        NETWORK.with_borrow_mut(|current| {
            if current.as_ref().is_some_and(|stage| Rc::ptr_eq(stage, &self.stage)) {
                *current = None;
            }
        });
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("requests", &self.stage.requests).finish_non_exhaustive()
    }
}

impl Answer {
    /// An answer without headers and without a body.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self { status, headers: HeaderMap::new(), body: Vec::new() }
    }

    /// Adds a header. The name is in lower case.
    ///
    /// # Panics
    /// If name or value is not valid in a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        #[expect(clippy::expect_used, reason = "a test that is wrong should stop where it stands")]
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

/// Asks the test.
pub(crate) fn send(request: &Request) -> Result<Answer, Reason> {
    // Not borrowed while the test answers: it may ask for something itself.
    let stage = NETWORK.with_borrow(Option::clone).ok_or(Reason::Off)?;
    stage.requests.borrow_mut().push(request.clone());
    (stage.answers)(request)
}
