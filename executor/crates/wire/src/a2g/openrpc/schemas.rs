//! The JSON Schemas that the methods refer to, derived from the types of the messages.

use crate::a2g::message;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use serde_json::{Map, Value};

/// Requests in which an omitted member may also be `null`.
const NULLABLE: [&str; 3] = ["Intent", "Verdict", "RiskAssessment"];

/// All schemas by name.
pub(super) fn derive_schemas() -> Map<String, Value> {
    let settings = SchemaSettings::draft07().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    generator.subschema_for::<message::IntentMessage<'_>>();
    generator.subschema_for::<message::VerdictMessage<'_>>();
    generator.subschema_for::<message::IntentAnswer<'_>>();
    generator.subschema_for::<message::ReportMessage<'_>>();
    generator.subschema_for::<message::ToolList<'_>>();
    generator.subschema_for::<crate::listing::ToolStubs>();
    generator.subschema_for::<message::CancelResult>();
    generator.subschema_for::<message::IntentStatus<'_>>();
    generator.subschema_for::<message::Acceptance>();
    generator.subschema_for::<message::RegistrationResult<'_>>();
    generator.subschema_for::<message::StopTargetMessage<'_>>();
    generator.subschema_for::<message::ResumeResult>();
    generator.subschema_for::<message::SessionEndResult>();
    generator.subschema_for::<message::StopList<'_>>();
    generator.subschema_for::<message::EffectsSetList<'_>>();
    let mut schemas = generator.take_definitions(true);
    for (name, schema) in &mut schemas {
        if let Ok(schema) = <&mut Schema>::try_from(schema) {
            remove_number_formats(schema);
            if !NULLABLE.contains(&name.as_str()) {
                remove_null(schema);
            }
        }
    }
    schemas
}

/// Removes the `format` of numbers, such as `uint64`, which strict validators reject.
fn remove_number_formats(schema: &mut Schema) {
    transform_subschemas(&mut remove_number_formats, schema);
    if schema.get("type").is_some_and(|kind| kind != "string") {
        schema.remove("format");
    }
}

/// Removes `null` from the members that are omitted instead.
fn remove_null(schema: &mut Schema) {
    transform_subschemas(&mut remove_null, schema);
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if !required.contains(&Value::from(name.as_str())) {
            strip_null(property);
        }
    }
}

/// Removes `null` from the schema of an `Option`.
fn strip_null(property: &mut Value) {
    let Some(property) = property.as_object_mut() else { return };
    let null = Value::from("null");
    if let Some(kinds) = property.get_mut("type").and_then(Value::as_array_mut) {
        kinds.retain(|kind| *kind != null);
        if let [kind] = kinds.as_slice() {
            let kind = kind.clone();
            property.insert("type".to_owned(), kind);
        }
    }
    if let Some(Value::Array(mut schemas)) = property.remove("anyOf") {
        schemas.retain(|schema| schema.get("type") != Some(&null));
        property.insert("allOf".to_owned(), schemas.into());
    }
}
