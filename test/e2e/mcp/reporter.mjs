// One line a case, and at the end `N passed, N failed`. A file with fewer cases than it had when this was written has failed,
// and so has a case that was skipped: node --test would be content with both.
import { basename } from 'node:path';

const least = { 'clients.test.mjs': 25, 'conformance.test.mjs': 124, 'docs.test.mjs': 11, 'inspector.test.mjs': 9 };

export default async function* report(events) {
	const passed = {};
	let failed = 0;
	for await (const { type, data } of events) {
		if (type === 'test:stderr' || type === 'test:stdout') yield data.message;
		if (type !== 'test:pass' && type !== 'test:fail') continue;
		const file = basename(data.file ?? data.name);
		const left = data.skip !== undefined || data.todo !== undefined;
		if (type === 'test:pass' && !left) {
			passed[file] = (passed[file] ?? 0) + 1;
			yield `ok   ${file}: ${data.name} (${Math.round(data.details.duration_ms)} ms)\n`;
			continue;
		}
		failed++;
		const error = data.details.error;
		yield `FAIL ${file}: ${data.name}${left ? ': skipped' : ''}\n${error?.cause?.stack ?? error?.cause ?? error ?? ''}\n`;
	}
	for (const [file, count] of Object.entries(least)) {
		if ((passed[file] ?? 0) >= count) continue;
		failed++;
		yield `FAIL ${file}: ${passed[file] ?? 0} cases passed, want at least ${count}\n`;
	}
	if (failed > 0) process.exitCode = 1;
	yield `${Object.values(passed).reduce((a, b) => a + b, 0)} passed, ${failed} failed\n`;
}
