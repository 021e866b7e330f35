//! Hands over a sound.

use a2g_guest_sdk::prelude::*;

/// Nothing to choose.
#[derive(Arguments)]
struct TestAudioContent {}

fn test_audio_content(ctx: &mut Context, _: TestAudioContent) -> Result<Value, ToolError> {
    ctx.artifact("silence.wav", "audio/wav", include_bytes!("../media/silence.wav"))?;
    Ok(json!("The sound is silence."))
}

export_tool!(test_audio_content, description = "Hands over a sound");
