//! The conditions of a policy, in Cedar's JSON form: what Cedar would accept, and what would not mean what it says here.

use serde_json::Value;

/// What matters of the conditions of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Conditions {
    /// `true` if `context.text` may be read.
    pub(super) mentions_text: bool,
    /// `true` for `resource == Folder::…`, and for other comparisons with a folder by `==` and `!=`.
    pub(super) compares_folder: bool,
    /// `true` if `resource` stands elsewhere than on the left of `in`, `is`, `==` and `!=`.
    pub(super) uses_resource_freely: bool,
}

impl Conditions {
    /// Looks at each expression of a policy in its JSON form.
    pub(super) fn of(policy: &Value) -> Self {
        let mut found = Self::default();
        let clauses = policy.get("conditions").and_then(Value::as_array);
        let mut rest =
            clauses.into_iter().flatten().filter_map(|clause| clause.get("body")).collect::<Vec<_>>();
        rest.iter().for_each(|body| found.see_operand("", "", body));
        // Cedar bounds the nesting; no stack is used here.
        while let Some(expression) = rest.pop() {
            let Some((operator, body)) = parts(expression) else { continue };
            for (role, operand) in operands(operator, body) {
                found.see_operand(operator, role, operand);
                rest.push(operand);
            }
            let attribute = body.get("attr");
            if matches!(operator, "." | "has") && attribute.is_some_and(|attribute| names(attribute, "text"))
            {
                found.mentions_text = true;
            }
        }
        found
    }

    fn see_operand(&mut self, operator: &str, role: &str, operand: &Value) {
        let Some((kind, value)) = parts(operand) else { return };
        match (kind, value.as_str()) {
            ("Var", Some("resource")) => {
                let is_compared = matches!(operator, "in" | "is" | "==" | "!=") && role == "left";
                self.uses_resource_freely |= !is_compared;
            }
            // The whole context has the text in it.
            ("Var", Some("context")) => self.mentions_text |= !matches!(operator, "." | "has"),
            ("Value", None) => self.compares_folder |= matches!(operator, "==" | "!=") && is_folder(value),
            (_, _) => {}
        }
    }
}

/// The operator of an expression, and what it is applied to.
fn parts(expression: &Value) -> Option<(&str, &Value)> {
    let (operator, body) = expression.as_object()?.iter().next()?;
    Some((operator, body))
}

/// The expressions that an operator is applied to, each with its role.
fn operands<'a>(operator: &str, body: &'a Value) -> Vec<(&'a str, &'a Value)> {
    match operator {
        // A value has no expressions in it, and a variable none.
        "Value" | "Var" | "Slot" | "Unknown" => Vec::new(),
        "Record" => body.as_object().into_iter().flatten().map(|(_, member)| ("member", member)).collect(),
        _operator => {
            let elements = body.as_array().into_iter().flatten().map(|element| ("element", element));
            let named = body.as_object().into_iter().flatten();
            // The others are names and patterns.
            let named =
                named.filter(|(role, _)| !["attr", "pattern", "entity_type"].contains(&role.as_str()));
            elements.chain(named.map(|(role, operand)| (role.as_str(), operand))).collect()
        }
    }
}

/// `true` if an attribute of `.` or a path of attributes of `has` has this name.
fn names(attribute: &Value, name: &str) -> bool {
    attribute == name || attribute.as_array().is_some_and(|path| path.iter().any(|part| part == name))
}

fn is_folder(value: &Value) -> bool {
    value.get("__entity").and_then(|entity| entity.get("type")).is_some_and(|kind| kind == "Folder")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cedar_policy::Policy;

    #[test]
    fn comparisons_and_free_uses_are_found_wherever_they_stand() {
        for (condition, finds) in [
            ("true", ""),
            ("resource in Folder::\"/a\"", ""),
            ("resource is Folder in Folder::\"/a\"", ""),
            ("resource == Host::\"a\"", ""),
            ("context.history.read.contains(Folder::\"/a\")", ""),
            ("context.input.path like \"*text*\" && \"text\" == \"Folder\"", ""),
            ("{ \"text\": 1 }.a == 1", ""),
            ("context.text like \"*a*\"", "text"),
            ("context[\"text\"] == \"\"", "text"),
            ("context has text", "text"),
            ("[context] == [context]", "text"),
            ("(if true then context else context).now == context.now", "text"),
            ("resource == Folder::\"/a\"", "folder"),
            ("!(1 == 2 || Folder::\"/a\" != resource)", "folder free"),
            ("[Folder::\"/a\"].contains(resource)", "free"),
            ("{ a: resource }.a in Folder::\"/a\"", "free"),
            ("Folder::\"/a\" in resource", "free"),
            ("resource", "free"),
        ] {
            for clause in ["when", "unless"] {
                let policy = format!("permit(principal, action, resource) {clause} {{ {condition} }};");
                let policy = Policy::parse(None, &policy).unwrap().to_json().unwrap();
                let expected = Conditions {
                    mentions_text: finds.contains("text"),
                    compares_folder: finds.contains("folder"),
                    uses_resource_freely: finds.contains("free"),
                };
                assert_eq!(Conditions::of(&policy), expected, "{condition}: {policy}");
            }
        }
    }
}
