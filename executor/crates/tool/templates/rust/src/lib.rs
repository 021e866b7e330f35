//! A typed tool that counts the words of a text.

use a2g_guest_sdk::prelude::*;

/// The arguments of the tool.
#[derive(Arguments)]
struct Arguments {
    /// The text whose words are counted.
    text: String,
}

fn count_words(ctx: &mut Context, arguments: Arguments) -> Result<Value, ToolError> {
    let words = arguments.text.split_whitespace().count();
    ctx.log(Level::Info, format!("counted {words} words"));
    if words == 0 {
        return Err(ToolError::new("no_words", "`text` has no words"));
    }
    Ok(json!({ "words": words }))
}

export_tool!(count_words, name = "template_tool", description = "Counts the words of a text.");

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_guest_sdk::testing;

    #[test]
    fn words_are_counted() {
        let run = testing::invoke(count_words, json!({ "text": "one two\n three" }));
        assert_eq!(run.result, Ok(json!({ "words": 3 })));
        assert_eq!(run.record.logs[0].message, "counted 3 words");
    }

    #[test]
    fn a_text_without_words_is_an_error() {
        let run = testing::invoke(count_words, json!({ "text": " " }));
        assert_eq!(run.result.unwrap_err().code(), "no_words");
    }

    #[test]
    fn the_manifest_matches_the_tool() {
        let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
        assert!(differences.is_empty(), "{differences:?}");
    }
}
