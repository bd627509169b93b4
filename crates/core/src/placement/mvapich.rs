//! What the variables of MVAPICH say about binding. Its library reads them in `MPI_Init` and binds, whatever mask it has; rankrun binds in the
//! same way before the program begins, and tells the library not to (`MVAPICH2 2.3 hwloc_bind.c`, `MVAPICH 4 mvp_init.c`).

use super::request::{BindTo, Binding, MapBy, Width};
use super::wish::{Wish, is_off, lists, number};
use crate::topology::{CpuSet, Level};

/// `None` where nothing is said, or what only the library can do.
pub(super) fn wish(value: &dyn Fn(&str) -> Option<String>) -> Option<Wish> {
    let either = |name: &str| value(&format!("MV2_{name}")).or_else(|| value(&format!("MVP_{name}")));
    let mut wish = Wish::default();
    if either("ENABLE_AFFINITY").is_some_and(|text| is_off(&text)) {
        wish.binding.to = BindTo::None;
        return Some(wish);
    }
    if let Some(text) = either("CPU_MAPPING") {
        let sets = text.split(':').map(|list| list.parse::<CpuSet>().ok().filter(|list| !list.is_empty()));
        lists(&mut wish, sets.collect::<Option<Vec<CpuSet>>>()?);
        return Some(wish);
    }
    let lower = |name: &str| either(name).map(|text| text.trim().to_ascii_lowercase());
    let (policy, level) = (lower("CPU_BINDING_POLICY"), lower("CPU_BINDING_LEVEL"));
    if policy.is_none() && level.is_none() {
        return None;
    }
    let to = match level.as_deref() {
        None | Some("core") => BindTo::Core,
        Some("socket") => BindTo::All(Level::Package),
        Some("numanode") => BindTo::All(Level::Numa),
        Some(_) => return None,
    };
    let (map_by, width) = match policy.as_deref() {
        None | Some("bunch") => (Some(MapBy::Core), None),
        Some("scatter") => (Some(MapBy::Each(Level::Package)), None),
        Some("hybrid") => {
            let threads = either("THREADS_PER_PROCESS").or_else(|| value("OMP_NUM_THREADS"));
            let width = Some(Width::Count(threads.and_then(|text| number(&text)).unwrap_or(1)));
            match lower("HYBRID_BINDING_POLICY").as_deref() {
                Some("linear") if either("PIVOT_CORE_ID").is_none_or(|pivot| pivot == "0") => {
                    (Some(MapBy::Core), width)
                }
                Some("spread") => (None, width),
                Some("scatter") => (Some(MapBy::Each(Level::Package)), width),
                Some("numa") => (Some(MapBy::Each(Level::Numa)), width),
                // Threads of one core, a first core of the user's, and the defaults, which differ from release to release.
                Some(_) | None => return None,
            }
        }
        Some(_) => return None,
    };
    wish.binding = Binding { to, map_by, width, ..Binding::default() };
    Some(wish)
}
