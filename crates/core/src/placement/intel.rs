//! What the variables of Intel MPI say about binding. Its launcher reads them and its library does not (2021.18), so that rankrun reads them
//! in place of the launcher. What they do was tried with `mpiexec.hydra` 2021.18.1 on machines that `HWLOC_XMLFILE` describes.

use super::request::{BindTo, Binding, MapBy, Width};
use super::wish::{Wish, is_off, lists, number};
use crate::topology::{CpuSet, Level};

/// Variables that the launcher follows, and that are named where they are not followed.
const NOT_FOLLOWED: &[(&str, &str)] = &[
    ("I_MPI_PIN_PROCESSOR_EXCLUDE_LIST", "write --cpu-list with the CPUs that ranks may have"),
    ("I_MPI_PIN_RESPECT_CPUSET", "ranks stay within the affinity mask of rankrun"),
];

/// `None` where nothing is said.
pub(super) fn wish(value: &dyn Fn(&str) -> Option<String>, ranks: u32) -> Option<Wish> {
    let mut wish = Wish::default();
    if value("I_MPI_PIN").is_some_and(|text| is_off(&text)) {
        wish.binding.to = BindTo::None;
        return Some(wish);
    }
    for (name, way_out) in NOT_FOLLOWED {
        if let Some(text) = value(name).filter(|text| *name != "I_MPI_PIN_RESPECT_CPUSET" || is_off(text)) {
            wish.notes.push(format!("{name}={text} is not followed: {way_out}"));
        }
    }
    wish.binding.overloads = true;
    wish.binding.threads_per_core = value("I_MPI_PIN_CELL").filter(|cell| cell.eq_ignore_ascii_case("core")).map(|_| 1);
    let list = value("I_MPI_PIN_PROCESSOR_LIST");
    let domain = value("I_MPI_PIN_DOMAIN");
    let order = value("I_MPI_PIN_ORDER").map(|order| order.to_ascii_lowercase());
    match (list, domain) {
        (Some(list), _) => processors(&mut wish, &list, ranks),
        (None, Some(domain)) => domains(&mut wish, &domain, order.as_deref(), value),
        // The order of default domains is that of their CPUs.
        (None, None) if wish.binding.threads_per_core.is_some() => wish.binding.width = Some(Width::All),
        (None, None) => return (!wish.notes.is_empty()).then(|| Wish { binding: Binding::default(), ..wish }),
    }
    Some(wish)
}

/// A list of CPUs: each rank gets the next one; in ascending order where a node has more ranks than the list has CPUs.
fn processors(wish: &mut Wish, text: &str, ranks: u32) {
    match text.parse::<CpuSet>() {
        Ok(list) if list.count() == 1 => {
            wish.binding.to = BindTo::None;
            wish.binding.cpus = vec![list];
        }
        Ok(list) if !list.is_empty() => {
            let typed = text
                .split(',')
                .filter_map(|part| part.parse::<CpuSet>().ok())
                .flat_map(|part| part.iter().collect::<Vec<_>>());
            let typed: Vec<u32> = if ranks > list.count() { list.iter().collect() } else { typed.collect() };
            wish.binding.cpus = typed.into_iter().map(|cpu| [cpu].into_iter().collect()).collect();
        }
        _ => {
            let is_cores = text.eq_ignore_ascii_case("allcores");
            wish.binding.width = Some(Width::All);
            if is_cores {
                wish.binding.threads_per_core = Some(1);
            } else {
                wish.notes.push(format!(
                    "I_MPI_PIN_PROCESSOR_LIST={text} is not a list of CPUs: each rank gets its share of the cores, as with Intel MPI's launcher"
                ));
            }
        }
    }
}

fn domains(wish: &mut Wish, domain: &str, order: Option<&str>, value: &dyn Fn(&str) -> Option<String>) {
    let domain = domain.trim().to_ascii_lowercase();
    if let Some(masks) = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let of = |mask: &str| mask.trim().strip_prefix("0x").and_then(mask_of);
        return match masks.split(',').map(of).collect::<Option<Vec<CpuSet>>>() {
            Some(masks) => lists(wish, masks),
            None => shares(wish, &format!("I_MPI_PIN_DOMAIN={domain} is not a list of masks, as [0x3,0xc]")),
        };
    }
    let (size, layout) = domain.split_once(':').map_or((&*domain, None), |(size, layout)| (size, Some(layout)));
    let whole = |level| (BindTo::All(level), MapBy::Each(level));
    let (to, by) = match size {
        "socket" | "sock" => whole(Level::Package),
        "numa" | "node" => whole(Level::Numa),
        "cache3" | "cache" | "cache1" | "cache2" => whole(Level::L3),
        "core" if layout.is_none() => return ordered(wish, BindTo::Core, 1, order),
        "auto" => return shares(wish, ""),
        "omp" => {
            return match value("OMP_NUM_THREADS").and_then(|text| number(&text)) {
                Some(threads) => ordered(wish, BindTo::Hwthread, threads, layout.or(order)),
                None => shares(wish, "OMP_NUM_THREADS is not set for I_MPI_PIN_DOMAIN=omp"),
            };
        }
        size => match number(size) {
            Some(count) => return ordered(wish, BindTo::Hwthread, count, layout.or(order)),
            // The launcher takes an unknown word for auto without a word.
            None => return shares(wish, &format!("I_MPI_PIN_DOMAIN={domain} is not known to Intel MPI either")),
        },
    };
    (wish.binding.to, wish.binding.map_by) = (to, Some(by));
}

/// Domains of so many CPUs, in one of the orders.
fn ordered(wish: &mut Wish, to: BindTo, count: u32, order: Option<&str>) {
    let (map_by, rank_by) = match order {
        Some("compact") => (Some(MapBy::Slot), None),
        Some("spread") => (None, None),
        Some("scatter") => (None, Some(MapBy::Each(Level::Package))),
        Some(_) | None => (Some(MapBy::Even), Some(MapBy::Core)),
    };
    if order == Some("scatter") {
        wish.notes.push(
            "I_MPI_PIN_ORDER=scatter: each package in turn, and within a package evenly spaced, which may differ from Intel MPI's launcher"
                .to_owned(),
        );
    }
    wish.binding = Binding { to, width: Some(Width::Count(count)), map_by, rank_by, ..wish.binding.clone() };
}

/// The domains of `auto`, with the reason if something else was wanted.
fn shares(wish: &mut Wish, why: &str) {
    wish.binding.width = Some(Width::All);
    if !why.is_empty() {
        wish.notes.push(format!("{why}: each rank gets its share of the cores, as with Intel MPI's launcher"));
    }
}

/// The CPUs of a mask in hexadecimal digits.
fn mask_of(digits: &str) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for (at, digit) in digits.chars().rev().enumerate() {
        let bits = digit.to_digit(16)?;
        cpus = cpus.union(&(0..4).filter(|bit| bits & (1 << bit) != 0).map(|bit| at as u32 * 4 + bit).collect());
    }
    (!cpus.is_empty()).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_sets_of_cpus() {
        assert_eq!(mask_of("f0"), "4-7".parse().ok());
        assert_eq!(mask_of("5500"), "8,10,12,14".parse().ok());
        assert_eq!(mask_of("0"), None);
        assert_eq!(mask_of("g"), None);
    }
}
