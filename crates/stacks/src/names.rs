//! Names of functions as people write them.

use cpp_demangle::DemangleOptions;

/// Names of templates may be longer than all else on a screen.
const MAX_LENGTH: usize = 160;

/// A symbol of C++, Rust or Cython without its arguments and the parameters of its templates; any other as it is. `is_go`: the dots in a
/// program of Go belong to its names, whatever follows them.
pub(crate) fn short(symbol: &str, is_go: bool) -> String {
    if is_go && !symbol.starts_with("_Z") {
        return symbol.to_owned();
    }
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return without_parameters(&format!("{name:#}"));
    }
    let plain = without_suffix(symbol);
    // A version: `f@@GLIBC_2.17`.
    let plain = plain.split_once('@').map_or(plain, |(name, _)| if name.is_empty() { plain } else { name });
    if let Some(name) = of_cython(plain) {
        return name;
    }
    // gfortran's procedures of a module.
    if let Some((module, name)) = plain.strip_prefix("__").and_then(|rest| rest.split_once("_MOD_")) {
        return format!("{module}::{name}");
    }
    // A method of Go, in a program that does not say that it is one.
    if plain.contains(".(*") {
        return plain.to_owned();
    }
    if !plain.starts_with("_Z") {
        // Debug information of C++ and Rust has names with parameters.
        return without_parameters(plain);
    }
    let options = DemangleOptions::new().no_params().no_return_type().recursion_limit(64);
    let name = cpp_demangle::BorrowedSymbol::new(plain.as_bytes()).ok();
    match name.and_then(|name| name.demangle_with_options(&options).ok()) {
        Some(name) => without_parameters(&name),
        None => plain.to_owned(),
    }
}

/// What compilers add to the names of copies and parts of a function, always with a number.
const NUMBERED: [&str; 9] =
    ["constprop", "isra", "part", "lto_priv", "llvm", "clone", "specialized", "_omp_fn", "__uniq"];
/// The same, with a number or without.
const PLAIN: [&str; 4] = ["cold", "localalias", "resolver", "omp_outlined"];

/// `f` of `f.cold`, `f.constprop.0` and `f.0`; but all of `main.search` and `main.clone`, in which the dot belongs to the name.
fn without_suffix(symbol: &str) -> &str {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = symbol.split('.');
    let Some(first) = parts.next().filter(|first| !first.is_empty()) else { return symbol };
    let rest: Vec<&str> = parts.collect();
    let is_suffix = |at: usize| {
        let has_number = rest.get(at + 1).is_some_and(|next| is_number(next));
        PLAIN.contains(&rest[at]) || (NUMBERED.contains(&rest[at]) && has_number)
    };
    let end = match rest.as_slice() {
        [number] if is_number(number) => Some(0),
        rest => (0..rest.len()).find(|at| is_suffix(*at)),
    };
    match end {
        Some(kept) => {
            let length = rest[..kept].iter().map(|part| part.len() + 1).sum::<usize>();
            &symbol[..first.len() + length]
        }
        None => symbol,
    }
}

/// `__pyx_pw_6mpi4py_3MPI_4Comm_293allreduce`: each part has its length before it, the last one a number of its own.
fn of_cython(symbol: &str) -> Option<String> {
    let rest = symbol.strip_prefix("__pyx_")?;
    let mut rest = rest.strip_prefix("pw_").or_else(|| rest.strip_prefix("pf_")).or_else(|| rest.strip_prefix("f_"))?;
    let mut parts = Vec::new();
    loop {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let name = &rest[digits..];
        let length = rest[..digits].parse::<usize>().ok();
        match length.and_then(|length| Some((name.get(..length)?, name.get(length..)?.strip_prefix('_')?))) {
            Some((part, after)) if !part.is_empty() => {
                parts.push(part);
                rest = after;
            }
            _ => {
                parts.push(name);
                return (parts.len() > 1).then(|| parts.join("."));
            }
        }
    }
}

/// Removes what stands in angle brackets or parentheses, except of operators, of `(anonymous namespace)`, and of
/// `<T as Trait>::f`.
fn without_parameters(name: &str) -> String {
    let mut short = String::new();
    let mut depth = 0usize;
    for (at, letter) in name.char_indices() {
        let is_of_operator = short.ends_with("operator") || (depth == 0 && short.ends_with("operator<"));
        let is_kept = depth == 0 && (is_of_operator || at == 0 || name[at..].starts_with("(anonymous"));
        match letter {
            '<' | '(' if is_kept => short.push(letter),
            '<' | '(' => depth += 1,
            // An arrow's point closes nothing.
            '>' if name[..at].ends_with('-') => {}
            '>' | ')' if depth > 0 => depth -= 1,
            _ if depth == 0 => short.push(letter),
            _ => {}
        }
    }
    let short = short.replace("::::", "::");
    let short = short.strip_suffix(" const").unwrap_or(&short);
    let short = short.strip_suffix("::").unwrap_or(short);
    match short.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{}...", &short[..end]),
        None => short.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_neither_arguments_nor_parameters() {
        for (symbol, name) in [
            ("MPI_Recv", "MPI_Recv"),
            ("_ZN4gloo9transport3tcp4Loop3runEv", "gloo::transport::tcp::Loop::run"),
            ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector::push_back"),
            ("_ZlsRSoi", "operator<<"),
            ("_ZN3foo3barILi3EEEvv.cold", "foo::bar"),
            ("work.constprop.0", "work"),
            ("work.0", "work"),
            ("__solver_MOD_relax", "solver::relax"),
            ("main._omp_fn.0", "main"),
            ("work.clone.3", "work"),
            ("work.part.0.constprop.1", "work"),
            ("work.localalias", "work"),
            ("work.llvm.1234567", "work"),
            ("main.clone", "main.clone"),
            ("main.part", "main.part"),
            ("main.clone.func1", "main.clone.func1"),
            ("main.(*T).clone", "main.(*T).clone"),
            ("main.search", "main.search"),
            ("main.search.func1", "main.search.func1"),
            ("net.(*conn).Read", "net.(*conn).Read"),
            ("runtime.mcall", "runtime.mcall"),
            (".Lstart", ".Lstart"),
            ("_ZN4gloo12_GLOBAL__N_19allreduceEv", "gloo::(anonymous namespace)::allreduce"),
            ("_ZZN3app3runEvENKUliE_clEi", "app::run::{lambda#1}::operator()"),
            ("__pyx_pw_6mpi4py_3MPI_4Comm_293allreduce", "mpi4py.MPI.Comm.allreduce"),
            ("__pyx_f_6mpi4py_3MPI_PyMPI_Commctx_INTRA", "mpi4py.MPI.PyMPI_Commctx_INTRA"),
            ("__pyx_unpickle", "__pyx_unpickle"),
            ("wait<alloc::rc::Rc<T>>", "wait"),
            ("_RNvCskwGfYPst2Cb_3foo3bar", "foo::bar"),
            ("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place"),
        ] {
            assert_eq!(short(symbol, false), name, "{symbol}");
        }
    }

    #[test]
    fn names_of_go_keep_what_elsewhere_is_a_suffix() {
        for symbol in
            ["main.clone", "main.part", "main.cold", "main.resolver", "main.(*T).clone", "main.cold.1", "main.sum[...]"]
        {
            assert_eq!(short(symbol, true), symbol);
        }
    }
}
