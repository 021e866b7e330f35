//! The durability level of the journal.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// The worst failure in which no acknowledged entry is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Durability {
    /// A power failure: every commit waits for the disk.
    #[default]
    PowerLoss,
    /// The end of the process: a commit waits for the kernel, and a power failure may lose the last entries.
    ProcessCrash,
}

impl Durability {
    /// The name used in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// `true` for the default, which receipts and reports omit.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
