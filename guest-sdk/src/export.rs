//! The macros that make a crate a tool.

/// Makes a function the tool of this crate.
///
/// The function takes `&mut Context` and its arguments, and returns `Result<R, E>` where `R:
/// Serialize` and `E: Into<ToolError>`. The options are `description` (required), `name` (otherwise
/// the function's) and `version` (otherwise the package's):
///
/// ```
/// # use a2g_guest_sdk::prelude::*;
/// # #[derive(Arguments)]
/// # struct Nothing {}
/// # fn run(_: &mut Context, _: Nothing) -> Result<Value, ToolError> { Ok(json!({})) }
/// export_tool!(run, name = "do_nothing", description = "Does nothing");
/// # fn main() { assert_eq!(describe().name, "do_nothing") }
/// ```
///
/// It defines `describe()` and `invoke(arguments)` on every target, so both can be tested natively. `invoke` takes and
/// returns JSON text. On WebAssembly, the macro also exports the world. Use it once in a crate.
#[macro_export]
macro_rules! export_tool {
    ($handler:ident $(, $option:ident = $value:expr)* $(,)?) => {
        /// The description that this tool gives of itself.
        #[must_use]
        pub fn describe() -> $crate::Descriptor {
            const IDENTITY: $crate::Identity =
                $crate::Identity::new(stringify!($handler), env!("CARGO_PKG_VERSION"))
                    $(.$option($value))*;
            const {
                assert!(IDENTITY.is_described(), "`export_tool!` needs a `description`");
            }
            $crate::__private::describe($handler, IDENTITY)
        }

        /// Runs this tool once. The arguments and the result are JSON text.
        ///
        /// # Errors
        /// The tool's own error, `invalid_arguments` or `invalid_result`.
        pub fn invoke(
            arguments: &str,
        ) -> ::core::result::Result<::std::string::String, $crate::ToolError> {
            let mut context = <$crate::Context as ::core::default::Default>::default();
            $crate::__private::invoke($handler, &mut context, arguments)
        }

        $crate::__export_world!(describe, invoke);
    };
}

/// Exports the world; there is nothing to export natively.
#[cfg(not(target_family = "wasm"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_world {
    ($describe:path, $invoke:path) => {};
}

/// Exports the world, and with it the custom section that describes it to `wit-component`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_world {
    ($describe:path, $invoke:path) => {
        #[allow(unsafe_code, reason = "the canonical ABI passes raw pointers")]
        const _: () = {
            struct Exported;

            impl $crate::__private::bindings::Guest for Exported {
                fn describe() -> $crate::__private::bindings::a2g::tool::types::Descriptor {
                    $describe().into()
                }

                fn invoke(
                    arguments: ::std::string::String,
                ) -> ::core::result::Result<
                    ::std::string::String,
                    $crate::__private::bindings::a2g::tool::types::ToolError,
                > {
                    $invoke(&arguments).map_err(::core::convert::Into::into)
                }
            }

            $crate::__private::bindings::export_world!(
                Exported with_types_in $crate::__private::bindings
            );
        };
    };
}
