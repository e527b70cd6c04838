//! The zones of the IANA database, by name.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::{WrittenZone, Zone, parse_zone};

/// Where the files of the IANA database come from.
pub trait ZoneSource: Send + Sync {
    /// The names of all zones. None if it cannot be asked now.
    fn names(&self) -> Option<HashSet<String>>;

    /// The TZif file of one of them. None if it cannot be read now.
    fn file(&self, name: &str) -> Option<Vec<u8>>;
}

/// No zone has a name.
struct NoZones;

impl ZoneSource for NoZones {
    fn names(&self) -> Option<HashSet<String>> {
        Some(HashSet::new())
    }

    fn file(&self, _name: &str) -> Option<Vec<u8>> {
        None
    }
}

/// Zones by name. Each is loaded when it is needed first. A name that no zone has costs a look into a table: names come
/// from records.
pub struct ZoneDatabase {
    source: Box<dyn ZoneSource>,
    names: OnceLock<HashSet<String>>,
    loaded: RwLock<HashMap<String, Arc<Zone>>>,
}

impl Default for ZoneDatabase {
    /// Without zones.
    fn default() -> Self {
        Self::new(Box::new(NoZones))
    }
}

impl ZoneDatabase {
    pub fn new(source: Box<dyn ZoneSource>) -> Self {
        Self { source, names: OnceLock::new(), loaded: RwLock::default() }
    }

    /// The zone, or None if the database has no such zone.
    pub fn find(&self, name: &str) -> Option<Arc<Zone>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if loaded.is_some() {
            return loaded;
        }
        if !self.has(name) {
            return None;
        }
        // Without a lock: the source may wait for another thread (for Python's interpreter), which may wait for the lock.
        let found = Arc::new(Zone::from_tzif(&self.source.file(name)?).ok()?);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        Some(loaded.entry(name.to_owned()).or_insert(found).clone())
    }

    fn has(&self, name: &str) -> bool {
        if let Some(names) = self.names.get() {
            return names.contains(name);
        }
        let Some(names) = self.source.names() else { return false };
        let found = names.contains(name);
        // Another thread may have been faster, with the same names.
        let _ = self.names.set(names);
        found
    }

    /// The zone that a setting names. None if there is no such zone.
    pub fn parse(&self, text: &str) -> Option<Arc<Zone>> {
        match parse_zone(text.as_bytes())? {
            WrittenZone::Offset(offset) => Some(Arc::new(Zone::fixed(offset))),
            WrittenZone::Name(name) => self.find(name),
        }
    }
}
