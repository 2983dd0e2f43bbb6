-- Made by a server of revision 20261130_0003 and SQLite's dump.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('20261130_0003');
CREATE TABLE entries (
	project VARCHAR(63) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	document TEXT NOT NULL, 
	header TEXT, 
	neff_sha256 VARCHAR(64), 
	neff_size BIGINT, 
	neff_encoding VARCHAR(16), 
	neff_stored_size BIGINT, 
	stored_bytes BIGINT NOT NULL, 
	compile_seconds FLOAT NOT NULL, 
	"indexed" FLOAT NOT NULL, label VARCHAR(255), compiler VARCHAR(64), compiler_version VARCHAR(128), checked FLOAT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (project, kind, "key")
);
INSERT INTO "entries" VALUES('default','graph','d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1','ready','{"schema":1,"project":"default","kind":"graph","key":"d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1","outputs":[{"name":"model.neff","sha256":"c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc","size":400,"encoding":"identity","stored_size":400},{"name":"compile.log","sha256":"64ebd267717810f9524a58c6d7715bd9502b3c9235b291a7104389b372aeec4b","size":8,"encoding":"identity","stored_size":8}],"created":"2026-11-30T00:00:00Z","compile_seconds":12.5,"peak_memory_bytes":null,"producer":{"version":"neff-cache/test","host":"host","label":"label"},"signature":null,"key_document":{"schema":1,"kind":"graph","ir":{"sha256":"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},"flags":["a"]}}','eyJzY2hlbWEiOjEsInByb2plY3QiOiJkZWZhdWx0Iiwia2luZCI6ImdyYXBoIiwia2V5IjoiZDA3MGMyZDEwZTk4MGIxMmNjZGFiMTkwNDk0YmJhNzIyMTlkOGM5ZDRmYWVhOTRmZGQyZmU2NGQ4Njg2OGRlMSIsIm91dHB1dHMiOlt7Im5hbWUiOiJtb2RlbC5uZWZmIiwic2hhMjU2IjoiYzJmNGNmYWE4OWRjZjY0NzNhZjM3OGQ1ODhiZTE0MmRiMDJmNWViNmYxZjE2OTU0OWQ4NWFmMTZjNDEyNDVmYyIsInNpemUiOjQwMCwiZW5jb2RpbmciOiJpZGVudGl0eSIsInN0b3JlZF9zaXplIjo0MDB9LHsibmFtZSI6ImNvbXBpbGUubG9nIiwic2hhMjU2IjoiNjRlYmQyNjc3MTc4MTBmOTUyNGE1OGM2ZDc3MTViZDk1MDJiM2M5MjM1YjI5MWE3MTA0Mzg5YjM3MmFlZWM0YiIsInNpemUiOjgsImVuY29kaW5nIjoiaWRlbnRpdHkiLCJzdG9yZWRfc2l6ZSI6OH1dLCJjcmVhdGVkIjoiMjAyNi0xMS0zMFQwMDowMDowMFoiLCJjb21waWxlX3NlY29uZHMiOjEyLjUsInBlYWtfbWVtb3J5X2J5dGVzIjpudWxsLCJwcm9kdWNlciI6eyJ2ZXJzaW9uIjoibmVmZi1jYWNoZS90ZXN0IiwiaG9zdCI6Imhvc3QiLCJsYWJlbCI6ImxhYmVsIn0sInNpZ25hdHVyZSI6bnVsbH0=','c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc',400,'identity',400,408,12.5,1700000000.5,'label','','',1700000000.5);
INSERT INTO "entries" VALUES('default','graph','a72eeb04cbd53a88af52d51b06a756ff883fcf00be8f0f5be8a6246de75cd2d6','ready','{"schema":1,"project":"default","kind":"graph","key":"a72eeb04cbd53a88af52d51b06a756ff883fcf00be8f0f5be8a6246de75cd2d6","outputs":[{"name":"model.neff","sha256":"c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc","size":400,"encoding":"identity","stored_size":400},{"name":"compile.log","sha256":"64ebd267717810f9524a58c6d7715bd9502b3c9235b291a7104389b372aeec4b","size":8,"encoding":"identity","stored_size":8}],"created":"2026-11-30T00:00:00Z","compile_seconds":12.5,"peak_memory_bytes":null,"producer":{"version":"neff-cache/test","host":"host","label":"label"},"signature":null,"key_document":{"schema":1,"kind":"graph","ir":{"sha256":"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"},"flags":["b"]}}','eyJzY2hlbWEiOjEsInByb2plY3QiOiJkZWZhdWx0Iiwia2luZCI6ImdyYXBoIiwia2V5IjoiYTcyZWViMDRjYmQ1M2E4OGFmNTJkNTFiMDZhNzU2ZmY4ODNmY2YwMGJlOGYwZjViZThhNjI0NmRlNzVjZDJkNiIsIm91dHB1dHMiOlt7Im5hbWUiOiJtb2RlbC5uZWZmIiwic2hhMjU2IjoiYzJmNGNmYWE4OWRjZjY0NzNhZjM3OGQ1ODhiZTE0MmRiMDJmNWViNmYxZjE2OTU0OWQ4NWFmMTZjNDEyNDVmYyIsInNpemUiOjQwMCwiZW5jb2RpbmciOiJpZGVudGl0eSIsInN0b3JlZF9zaXplIjo0MDB9LHsibmFtZSI6ImNvbXBpbGUubG9nIiwic2hhMjU2IjoiNjRlYmQyNjc3MTc4MTBmOTUyNGE1OGM2ZDc3MTViZDk1MDJiM2M5MjM1YjI5MWE3MTA0Mzg5YjM3MmFlZWM0YiIsInNpemUiOjgsImVuY29kaW5nIjoiaWRlbnRpdHkiLCJzdG9yZWRfc2l6ZSI6OH1dLCJjcmVhdGVkIjoiMjAyNi0xMS0zMFQwMDowMDowMFoiLCJjb21waWxlX3NlY29uZHMiOjEyLjUsInBlYWtfbWVtb3J5X2J5dGVzIjpudWxsLCJwcm9kdWNlciI6eyJ2ZXJzaW9uIjoibmVmZi1jYWNoZS90ZXN0IiwiaG9zdCI6Imhvc3QiLCJsYWJlbCI6ImxhYmVsIn0sInNpZ25hdHVyZSI6bnVsbH0=','c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc',400,'identity',400,408,12.5,1700000000.5,'label','','',1700000000.5);
INSERT INTO "entries" VALUES('default','graph','873e7b68ec2305279aedff7d65c07eaaf44aeca8494581501240aed7e664ef6f','ready','{"schema":1,"project":"default","kind":"graph","key":"873e7b68ec2305279aedff7d65c07eaaf44aeca8494581501240aed7e664ef6f","outputs":[{"name":"model.neff","sha256":"c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc","size":400,"encoding":"identity","stored_size":400},{"name":"compile.log","sha256":"64ebd267717810f9524a58c6d7715bd9502b3c9235b291a7104389b372aeec4b","size":8,"encoding":"identity","stored_size":8}],"created":"2026-11-30T00:00:00Z","compile_seconds":12.5,"peak_memory_bytes":null,"producer":{"version":"neff-cache/test","host":"host","label":"label"},"signature":null,"key_document":{"schema":1,"kind":"graph","ir":{"sha256":"2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6"},"flags":["c"]}}','eyJzY2hlbWEiOjEsInByb2plY3QiOiJkZWZhdWx0Iiwia2luZCI6ImdyYXBoIiwia2V5IjoiODczZTdiNjhlYzIzMDUyNzlhZWRmZjdkNjVjMDdlYWFmNDRhZWNhODQ5NDU4MTUwMTI0MGFlZDdlNjY0ZWY2ZiIsIm91dHB1dHMiOlt7Im5hbWUiOiJtb2RlbC5uZWZmIiwic2hhMjU2IjoiYzJmNGNmYWE4OWRjZjY0NzNhZjM3OGQ1ODhiZTE0MmRiMDJmNWViNmYxZjE2OTU0OWQ4NWFmMTZjNDEyNDVmYyIsInNpemUiOjQwMCwiZW5jb2RpbmciOiJpZGVudGl0eSIsInN0b3JlZF9zaXplIjo0MDB9LHsibmFtZSI6ImNvbXBpbGUubG9nIiwic2hhMjU2IjoiNjRlYmQyNjc3MTc4MTBmOTUyNGE1OGM2ZDc3MTViZDk1MDJiM2M5MjM1YjI5MWE3MTA0Mzg5YjM3MmFlZWM0YiIsInNpemUiOjgsImVuY29kaW5nIjoiaWRlbnRpdHkiLCJzdG9yZWRfc2l6ZSI6OH1dLCJjcmVhdGVkIjoiMjAyNi0xMS0zMFQwMDowMDowMFoiLCJjb21waWxlX3NlY29uZHMiOjEyLjUsInBlYWtfbWVtb3J5X2J5dGVzIjpudWxsLCJwcm9kdWNlciI6eyJ2ZXJzaW9uIjoibmVmZi1jYWNoZS90ZXN0IiwiaG9zdCI6Imhvc3QiLCJsYWJlbCI6ImxhYmVsIn0sInNpZ25hdHVyZSI6bnVsbH0=','c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc',400,'identity',400,408,12.5,1700000000.5,'label','','',1700000000.5);
CREATE TABLE failures (
	id INTEGER NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	generation BIGINT NOT NULL, 
	failure_class VARCHAR(16) NOT NULL, 
	text TEXT NOT NULL, 
	log TEXT NOT NULL, 
	host TEXT NOT NULL, 
	time FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "failures" VALUES(1,'default','graph','c2bb60a8139361d3f27217e4c45c46069be373aada39f03c2725f091e2c2abd3',1796025915475,'diagnosis','no such operator','','h',1700000000.5);
CREATE TABLE jobs (
	name VARCHAR(32) NOT NULL, 
	holder VARCHAR(64) NOT NULL, 
	expires FLOAT NOT NULL, 
	finished FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE leases (
	project VARCHAR(63) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	generation BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	token_hash VARCHAR(64) NOT NULL, 
	holder TEXT NOT NULL, 
	since FLOAT NOT NULL, 
	expires FLOAT NOT NULL, 
	PRIMARY KEY (project, kind, "key")
);
INSERT INTO "leases" VALUES('default','graph','c076e0ace3c3004c9cf69feecbb8f9b45ca506dae09a726052f218399c26d37e',1796025915459,'held','28502a8fdcfcb0ce41e9949244255fc818bb3038904cee3a75f8047b4fa01f1e','{"host": "h", "pid": 1, "rank": null, "label": ""}',1700000000.5,1.79602594545906114583e+09);
INSERT INTO "leases" VALUES('default','graph','c2bb60a8139361d3f27217e4c45c46069be373aada39f03c2725f091e2c2abd3',1796025915475,'failed','3218b219b4135857770b6e3214cf16b39a7e37964d22365ac9e5f66422cb5ce0','{"host": "h", "pid": 1, "rank": null, "label": ""}',1700000000.5,1.79602594547517490381e+09);
CREATE TABLE meta (
	table_name VARCHAR(32) NOT NULL, 
	row_id VARCHAR(200) NOT NULL, 
	revision BIGINT NOT NULL, 
	project VARCHAR(63), 
	document TEXT NOT NULL, 
	updated FLOAT NOT NULL, 
	PRIMARY KEY (table_name, row_id)
);
INSERT INTO "meta" VALUES('pins','default.entry.graph.d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1',1,'default','{"what": "entry", "kind": "graph", "key": "d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1", "keys": [["graph", "d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1"]], "by": "bootstrap"}',1700000000.5);
INSERT INTO "meta" VALUES('quotas','project.default',1,'default','{"max_bytes": null, "max_entries": 20}',1700000000.5);
CREATE TABLE plans (
	project VARCHAR(63) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	body TEXT NOT NULL, 
	updated FLOAT NOT NULL, 
	PRIMARY KEY (project, name)
);
CREATE TABLE reported (
	project VARCHAR(63) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	counter VARCHAR(64) NOT NULL, 
	total FLOAT NOT NULL, 
	PRIMARY KEY (project, kind, counter)
);
CREATE TABLE revocations (
	id INTEGER NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	time FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE scrub (
	id INTEGER NOT NULL, 
	horizon FLOAT NOT NULL, 
	started FLOAT NOT NULL, 
	ended FLOAT, 
	entries BIGINT NOT NULL, 
	bytes_read BIGINT NOT NULL, 
	quarantined BIGINT NOT NULL, 
	unreadable BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE tokens (
	token_hash VARCHAR(64) NOT NULL, 
	label VARCHAR(255) NOT NULL, 
	scopes VARCHAR(255) NOT NULL, 
	project_pattern VARCHAR(255) NOT NULL, 
	kind_pattern VARCHAR(255) NOT NULL, 
	created FLOAT NOT NULL, 
	expires FLOAT, 
	revoked FLOAT, 
	PRIMARY KEY (token_hash)
);
INSERT INTO "tokens" VALUES('6a87499eebbac68617673349b2d323e5a7974f5f71745fff8b5160ecf6243b40','bootstrap','admin','*','*',1700000000.5,NULL,NULL);
INSERT INTO "tokens" VALUES('5042fd630941205df577820d33ca6ee36d79c7289e52d7dfd8887edbde7de179','user','admin','*','*',1700000000.5,NULL,NULL);
CREATE TABLE usage (
	project VARCHAR(63) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	hits BIGINT NOT NULL, 
	heat FLOAT NOT NULL, 
	last_used FLOAT NOT NULL, 
	PRIMARY KEY (project, kind, "key")
);
CREATE INDEX ix_entries_totals ON entries (project, kind, state, stored_bytes, compile_seconds);
CREATE INDEX ix_leases_state ON leases (state, expires);
CREATE INDEX ix_failures_key ON failures (project, kind, "key", time);
CREATE INDEX ix_revocations_project ON revocations (project, time);
CREATE INDEX ix_meta_project ON meta (table_name, project);
CREATE INDEX ix_entries_checked ON entries (state, checked, project, kind, "key");
COMMIT;
