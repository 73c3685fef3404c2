// The page without an install, in Firefox. By hand, for CI has no Firefox:
//   apt-get install firefox-esr; npm install --no-save puppeteer-core; python -m http.server -d build/site
//   node tests/site_firefox.mjs http://127.0.0.1:8000/ [FIREFOX]
// Prints what it saw, a line each, and ends with 1 where something is not as it should be.
import puppeteer from "puppeteer-core";

const [address, executablePath = "/usr/bin/firefox-esr"] = process.argv.slice(2);
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true });
const page = await browser.newPage();
await page.setViewport({ width: 1280, height: 900 });
const elsewhere = [];
const errors = [];
page.on("request", (request) => { if (![address, "data:", "blob:"].some((own) => request.url().startsWith(own))) elsewhere.push(request.url()); });
page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
page.on("pageerror", (error) => errors.push(String(error)));

const see = (selector, text) => page.waitForFunction(
  (where, what) => document.querySelector(where)?.textContent.includes(what), { timeout: 120_000 }, selector, text);
const open = async (name) => {
  await page.goto(`${address}${name}`);
  await page.waitForFunction(() => document.documentElement.dataset.python, { timeout: 120_000 });
  await see("#python", "Python is ready");
  const marks = await page.evaluate(() => performance.getEntriesByType("mark").map(({ name: mark, startTime }) => `${mark} ${(startTime / 1000).toFixed(2)} s`));
  console.log(`${name}: ${marks.join(", ")}`);
};

try {
  console.log(await browser.version());
  await open("explorer.html");
  await page.waitForSelector(".lp-map");
  await page.focus("input[data-axis=tp]");
  await page.keyboard.press("ArrowLeft");
  await see(".lp-product", "4 · ");
  await page.click("[data-tab=time]");
  await page.click(".lp-inner [data-tab=plan]");
  await see(".lp-search", "judged");
  await page.evaluate(() => [...document.querySelectorAll(".lp-search button")].find((one) => one.textContent === "Stop").click());
  await see(".lp-summary", "stopped");
  console.log("a move is answered, and a search is stopped");
  await open("explorer.html");
  await open("explorer.html");
  await open("clinic.html");
  await page.focus(".lp-clinic textarea");
  await page.keyboard.type("n_kv_heads (8) must be divisible by tp (16)");
  await page.waitForSelector("[data-category]", { timeout: 120_000 });
  console.log(`the clinic says: ${await page.$eval("[data-category] .lp-line", (line) => line.textContent)}`);
} catch (error) {
  errors.push(String(error));
}
console.log(`other hosts asked: ${elsewhere.length} ${elsewhere.join(" ")}`);
console.log(`errors: ${errors.length} ${errors.join(" | ")}`);
await browser.close();
process.exitCode = elsewhere.length + errors.length ? 1 : 0;
