// Asks the server. The token is kept by this tab alone, and sent with each request; it is no cookie, so no other page can use it.

const KEY = "rankrun-token";
const BOUND = 15000;

/** The answer was not what was asked for. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Takes the token from the address, where nobody reads it over a shoulder later. */
export function takeToken() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const token = fields.get("token");
  if (token === null) return;
  sessionStorage.setItem(KEY, token);
  fields.delete("token");
  history.replaceState(null, "", `#${fields}`);
}

export async function ask(path, fields = {}) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  const token = sessionStorage.getItem(KEY) ?? "";
  const response = await fetch(`api/${path}${query ? `?${query}` : ""}`, {
    headers: { authorization: `Bearer ${token}` },
    cache: "no-store",
    credentials: "omit",
    signal: AbortSignal.timeout(BOUND),
  });
  if (response.ok) return response.json();
  const isJson = response.headers.get("content-type") === "application/json";
  throw new Refused(response.status, isJson ? (await response.json()).error : await response.text());
}

/** What went wrong, for the user. */
export function inWords(error) {
  if (error instanceof Refused && error.status === 401) {
    return "The token is missing or wrong: open the address that \"rankrun web\" has printed.";
  }
  if (error instanceof Refused) return error.message;
  if (error.name === "TimeoutError") return "\"rankrun web\" does not answer.";
  return "\"rankrun web\" cannot be reached: it has ended, or the connection (ssh -L) is closed. What is shown is old.";
}
