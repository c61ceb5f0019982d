// What docs/mcp.md tells people to type: every configuration of a client is connected with, every shell block is run.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { bin, root, run, serve, workspace } from './rig.mjs';

const server = await serve(workspace());
const piped = workspace();

/** The entry of the server in a configuration. Of TOML it knows what the page uses: one table, values that are JSON, too. */
function entry(language, body) {
	if (language === 'json') {
		const config = JSON.parse(body);
		return Object.values(config.mcpServers ?? config.servers)[0];
	}
	const [head, ...lines] = body.trim().split('\n');
	assert.match(head, /^\[mcp_servers\.\w+\]$/);
	return Object.fromEntries(lines.map((line) => line.split(' = ')).map(([key, value]) => [key, JSON.parse(value)]));
}

function transport({ command, args, url, headers, bearer_token_env_var: variable }) {
	if (command) {
		assert.equal(command, 'eda-sidecar');
		return new StdioClientTransport({ command: bin, args: args.map((a) => a.replace('/srv/chip', piped)), stderr: 'ignore' });
	}
	const given = headers?.Authorization ?? `Bearer \${${variable}}`;
	const filled = given.replace(/\$\{(env:)?EDA_SIDECAR_TOKEN\}|\$\{input:eda-token\}/, server.token);
	assert.notEqual(filled, given, 'no token');
	assert.equal(url, 'http://127.0.0.1:8080/mcp');
	return new StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers: { Authorization: filled } } });
}

let section;
for (const [, heading, language, body] of readFileSync(join(root, 'docs/mcp.md'), 'utf8').matchAll(/^## ([^\n]+)|^```(json|toml|sh)\n(.*?)^```/gms)) {
	section = heading ?? section;
	if (language === 'sh') {
		test(`${section}: ${body.split('\n')[0]}`, async () => {
			const script = body.replaceAll('http://127.0.0.1:8080/mcp', server.url);
			const r = await run('bash', ['-euo', 'pipefail', '-c', script], { env: { ...process.env, EDA_SIDECAR_TOKEN: server.token } });
			assert.equal(r.status, 0, r.stderr);
			assert.match(r.stdout, /"code":"OK"/);
		});
	} else if (language) {
		test(`${section}: ${body.includes('8080') ? 'HTTP' : 'stdio'}`, async () => {
			const client = new Client({ name: 'docs', version: '1' });
			await client.connect(transport(entry(language, body)));
			const answer = await client.callTool({ name: 'session_open', arguments: {} });
			assert.equal(answer.structuredContent.code, 'OK');
			await client.close();
		});
	}
}
