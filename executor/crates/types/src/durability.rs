//! The durability level of the journal, and the starts that wait for the disk.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// The worst failure in which no acknowledged entry is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Durability {
    /// A power failure: a commit waits for the disk, except for starts that [`SyncedStarts`] leaves out.
    #[default]
    PowerLoss,
    /// The end of the process: a commit waits for the kernel, and a power failure may lose the last entries.
    ProcessCrash,
}

/// The runs whose start is on the disk before their guest begins, at the durability [`Durability::PowerLoss`]. The start
/// of any other run is on the disk together with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncedStarts {
    /// Runs that may have an effect: they may write a file, use the network or call another tool, or others than the
    /// waiting caller are told of them before their end.
    #[default]
    WithEffects,
    /// All runs.
    All,
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
