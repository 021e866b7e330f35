//! One answer of the executor, read for the table.

use serde_json::Value;

/// A whole JSON-RPC answer to `a2g/intent`.
#[derive(Debug)]
pub(super) struct Reply(pub(super) Value);

impl Reply {
    fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The verdict's word. A denial is a JSON-RPC error that says that it is one; of any other error,
    /// the code is all there is.
    pub(super) fn verdict(&self) -> String {
        if let Some(word) = self.at("/result/verdict").as_str() {
            return word.to_owned();
        }
        match self.at("/error/data/blocked_by").as_str() {
            Some("verdict_denied") => "DENIED".to_owned(),
            _ => format!("error {}", self.at("/error/code")),
        }
    }

    /// The risk score that the governor gave.
    pub(super) fn risk(&self) -> Option<f64> {
        let score = self.at("/result/risk_assessment/score");
        score.as_f64().or_else(|| self.at("/error/data/risk_score").as_f64())
    }

    /// The report, when the tool ran.
    pub(super) fn report(&self) -> Option<&Value> {
        self.0.pointer("/result/report")
    }

    /// The status word of the report.
    pub(super) fn outcome(&self) -> Option<&str> {
        self.report()?.get("status")?.as_str()
    }

    /// What the tool gave back.
    pub(super) fn result(&self) -> &Value {
        self.at("/result/report/result")
    }

    /// The sentence about what went wrong, the report's before the governor's.
    pub(super) fn sentence(&self) -> Option<&str> {
        let places = ["/result/report/error", "/error/message", "/result/reason"];
        places.iter().find_map(|place| self.at(place).as_str())
    }

    /// The code of the JSON-RPC error.
    pub(super) fn error_code(&self) -> Option<i64> {
        self.at("/error/code").as_i64()
    }

    /// The first thing that the tool reached for in vain.
    pub(super) fn first_denied(&self) -> Option<&Value> {
        self.0.pointer("/result/report/usage/denied/0")
    }

    /// A limit of the report's `usage`.
    pub(super) fn limit(&self, name: &str) -> Option<Amount<'_>> {
        let limit = self.report()?.pointer("/usage/limits")?.get(name)?;
        Some(Amount {
            granted: limit.get("granted")?.as_u64()?,
            used: limit.get("used")?.as_f64()?,
            set_by: limit.get("set_by")?.as_str()?,
        })
    }
}

/// What was granted of a limit, what was used of it, and which layer set it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amount<'a> {
    pub(super) granted: u64,
    pub(super) used: f64,
    pub(super) set_by: &'a str,
}
