-- Made by a server of revision 20261130_0003 and pg_dump --inserts; comments and settings removed.
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.entries (
    project character varying(63) NOT NULL,
    kind character varying(16) NOT NULL,
    key character varying(64) NOT NULL,
    state character varying(16) NOT NULL,
    document text NOT NULL,
    header text,
    neff_sha256 character varying(64),
    neff_size bigint,
    neff_encoding character varying(16),
    neff_stored_size bigint,
    stored_bytes bigint NOT NULL,
    compile_seconds double precision NOT NULL,
    indexed double precision NOT NULL,
    label character varying(255),
    compiler character varying(64),
    compiler_version character varying(128),
    checked double precision DEFAULT '0'::double precision NOT NULL
);
CREATE TABLE public.failures (
    id integer NOT NULL,
    project character varying(63) NOT NULL,
    kind character varying(16) NOT NULL,
    key character varying(64) NOT NULL,
    generation bigint NOT NULL,
    failure_class character varying(16) NOT NULL,
    text text NOT NULL,
    log text NOT NULL,
    host text NOT NULL,
    "time" double precision NOT NULL
);
CREATE SEQUENCE public.failures_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.failures_id_seq OWNED BY public.failures.id;
CREATE TABLE public.jobs (
    name character varying(32) NOT NULL,
    holder character varying(64) NOT NULL,
    expires double precision NOT NULL,
    finished double precision NOT NULL
);
CREATE TABLE public.leases (
    project character varying(63) NOT NULL,
    kind character varying(16) NOT NULL,
    key character varying(64) NOT NULL,
    generation bigint NOT NULL,
    state character varying(16) NOT NULL,
    token_hash character varying(64) NOT NULL,
    holder text NOT NULL,
    since double precision NOT NULL,
    expires double precision NOT NULL
);
CREATE TABLE public.meta (
    table_name character varying(32) NOT NULL,
    row_id character varying(200) NOT NULL,
    revision bigint NOT NULL,
    project character varying(63),
    document text NOT NULL,
    updated double precision NOT NULL
);
CREATE TABLE public.plans (
    project character varying(63) NOT NULL,
    name character varying(64) NOT NULL,
    body text NOT NULL,
    updated double precision NOT NULL
);
CREATE TABLE public.reported (
    project character varying(63) NOT NULL,
    kind character varying(16) NOT NULL,
    counter character varying(64) NOT NULL,
    total double precision NOT NULL
);
CREATE TABLE public.revocations (
    id integer NOT NULL,
    project character varying(63) NOT NULL,
    kind character varying(16) NOT NULL,
    key character varying(64) NOT NULL,
    sha256 character varying(64) NOT NULL,
    "time" double precision NOT NULL
);
CREATE SEQUENCE public.revocations_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.revocations_id_seq OWNED BY public.revocations.id;
CREATE TABLE public.scrub (
    id integer NOT NULL,
    horizon double precision NOT NULL,
    started double precision NOT NULL,
    ended double precision,
    entries bigint NOT NULL,
    bytes_read bigint NOT NULL,
    quarantined bigint NOT NULL,
    unreadable bigint NOT NULL
);
CREATE SEQUENCE public.scrub_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.scrub_id_seq OWNED BY public.scrub.id;
CREATE TABLE public.tokens (
    token_hash character varying(64) NOT NULL,
    label character varying(255) NOT NULL,
    scopes character varying(255) NOT NULL,
    project_pattern character varying(255) NOT NULL,
    kind_pattern character varying(255) NOT NULL,
    created double precision NOT NULL,
    expires double precision,
    revoked double precision
);
CREATE TABLE public.usage (
    project character varying(63) NOT NULL,
    kind character varying(16) NOT NULL,
    key character varying(64) NOT NULL,
    hits bigint NOT NULL,
    heat double precision NOT NULL,
    last_used double precision NOT NULL
);
ALTER TABLE ONLY public.failures ALTER COLUMN id SET DEFAULT nextval('public.failures_id_seq'::regclass);
ALTER TABLE ONLY public.revocations ALTER COLUMN id SET DEFAULT nextval('public.revocations_id_seq'::regclass);
ALTER TABLE ONLY public.scrub ALTER COLUMN id SET DEFAULT nextval('public.scrub_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('20261130_0003');
INSERT INTO public.entries VALUES ('default', 'graph', 'd070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1', 'ready', '{"schema":1,"project":"default","kind":"graph","key":"d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1","outputs":[{"name":"model.neff","sha256":"c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc","size":400,"encoding":"identity","stored_size":400},{"name":"compile.log","sha256":"64ebd267717810f9524a58c6d7715bd9502b3c9235b291a7104389b372aeec4b","size":8,"encoding":"identity","stored_size":8}],"created":"2026-11-30T00:00:00Z","compile_seconds":12.5,"peak_memory_bytes":null,"producer":{"version":"neff-cache/test","host":"host","label":"label"},"signature":null,"key_document":{"schema":1,"kind":"graph","ir":{"sha256":"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},"flags":["a"]}}', 'eyJzY2hlbWEiOjEsInByb2plY3QiOiJkZWZhdWx0Iiwia2luZCI6ImdyYXBoIiwia2V5IjoiZDA3MGMyZDEwZTk4MGIxMmNjZGFiMTkwNDk0YmJhNzIyMTlkOGM5ZDRmYWVhOTRmZGQyZmU2NGQ4Njg2OGRlMSIsIm91dHB1dHMiOlt7Im5hbWUiOiJtb2RlbC5uZWZmIiwic2hhMjU2IjoiYzJmNGNmYWE4OWRjZjY0NzNhZjM3OGQ1ODhiZTE0MmRiMDJmNWViNmYxZjE2OTU0OWQ4NWFmMTZjNDEyNDVmYyIsInNpemUiOjQwMCwiZW5jb2RpbmciOiJpZGVudGl0eSIsInN0b3JlZF9zaXplIjo0MDB9LHsibmFtZSI6ImNvbXBpbGUubG9nIiwic2hhMjU2IjoiNjRlYmQyNjc3MTc4MTBmOTUyNGE1OGM2ZDc3MTViZDk1MDJiM2M5MjM1YjI5MWE3MTA0Mzg5YjM3MmFlZWM0YiIsInNpemUiOjgsImVuY29kaW5nIjoiaWRlbnRpdHkiLCJzdG9yZWRfc2l6ZSI6OH1dLCJjcmVhdGVkIjoiMjAyNi0xMS0zMFQwMDowMDowMFoiLCJjb21waWxlX3NlY29uZHMiOjEyLjUsInBlYWtfbWVtb3J5X2J5dGVzIjpudWxsLCJwcm9kdWNlciI6eyJ2ZXJzaW9uIjoibmVmZi1jYWNoZS90ZXN0IiwiaG9zdCI6Imhvc3QiLCJsYWJlbCI6ImxhYmVsIn0sInNpZ25hdHVyZSI6bnVsbH0=', 'c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc', 400, 'identity', 400, 408, 12.5, 1700000000.5, 'label', '', '', 1700000000.5);
INSERT INTO public.entries VALUES ('default', 'graph', 'a72eeb04cbd53a88af52d51b06a756ff883fcf00be8f0f5be8a6246de75cd2d6', 'ready', '{"schema":1,"project":"default","kind":"graph","key":"a72eeb04cbd53a88af52d51b06a756ff883fcf00be8f0f5be8a6246de75cd2d6","outputs":[{"name":"model.neff","sha256":"c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc","size":400,"encoding":"identity","stored_size":400},{"name":"compile.log","sha256":"64ebd267717810f9524a58c6d7715bd9502b3c9235b291a7104389b372aeec4b","size":8,"encoding":"identity","stored_size":8}],"created":"2026-11-30T00:00:00Z","compile_seconds":12.5,"peak_memory_bytes":null,"producer":{"version":"neff-cache/test","host":"host","label":"label"},"signature":null,"key_document":{"schema":1,"kind":"graph","ir":{"sha256":"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"},"flags":["b"]}}', 'eyJzY2hlbWEiOjEsInByb2plY3QiOiJkZWZhdWx0Iiwia2luZCI6ImdyYXBoIiwia2V5IjoiYTcyZWViMDRjYmQ1M2E4OGFmNTJkNTFiMDZhNzU2ZmY4ODNmY2YwMGJlOGYwZjViZThhNjI0NmRlNzVjZDJkNiIsIm91dHB1dHMiOlt7Im5hbWUiOiJtb2RlbC5uZWZmIiwic2hhMjU2IjoiYzJmNGNmYWE4OWRjZjY0NzNhZjM3OGQ1ODhiZTE0MmRiMDJmNWViNmYxZjE2OTU0OWQ4NWFmMTZjNDEyNDVmYyIsInNpemUiOjQwMCwiZW5jb2RpbmciOiJpZGVudGl0eSIsInN0b3JlZF9zaXplIjo0MDB9LHsibmFtZSI6ImNvbXBpbGUubG9nIiwic2hhMjU2IjoiNjRlYmQyNjc3MTc4MTBmOTUyNGE1OGM2ZDc3MTViZDk1MDJiM2M5MjM1YjI5MWE3MTA0Mzg5YjM3MmFlZWM0YiIsInNpemUiOjgsImVuY29kaW5nIjoiaWRlbnRpdHkiLCJzdG9yZWRfc2l6ZSI6OH1dLCJjcmVhdGVkIjoiMjAyNi0xMS0zMFQwMDowMDowMFoiLCJjb21waWxlX3NlY29uZHMiOjEyLjUsInBlYWtfbWVtb3J5X2J5dGVzIjpudWxsLCJwcm9kdWNlciI6eyJ2ZXJzaW9uIjoibmVmZi1jYWNoZS90ZXN0IiwiaG9zdCI6Imhvc3QiLCJsYWJlbCI6ImxhYmVsIn0sInNpZ25hdHVyZSI6bnVsbH0=', 'c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc', 400, 'identity', 400, 408, 12.5, 1700000000.5, 'label', '', '', 1700000000.5);
INSERT INTO public.entries VALUES ('default', 'graph', '873e7b68ec2305279aedff7d65c07eaaf44aeca8494581501240aed7e664ef6f', 'ready', '{"schema":1,"project":"default","kind":"graph","key":"873e7b68ec2305279aedff7d65c07eaaf44aeca8494581501240aed7e664ef6f","outputs":[{"name":"model.neff","sha256":"c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc","size":400,"encoding":"identity","stored_size":400},{"name":"compile.log","sha256":"64ebd267717810f9524a58c6d7715bd9502b3c9235b291a7104389b372aeec4b","size":8,"encoding":"identity","stored_size":8}],"created":"2026-11-30T00:00:00Z","compile_seconds":12.5,"peak_memory_bytes":null,"producer":{"version":"neff-cache/test","host":"host","label":"label"},"signature":null,"key_document":{"schema":1,"kind":"graph","ir":{"sha256":"2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6"},"flags":["c"]}}', 'eyJzY2hlbWEiOjEsInByb2plY3QiOiJkZWZhdWx0Iiwia2luZCI6ImdyYXBoIiwia2V5IjoiODczZTdiNjhlYzIzMDUyNzlhZWRmZjdkNjVjMDdlYWFmNDRhZWNhODQ5NDU4MTUwMTI0MGFlZDdlNjY0ZWY2ZiIsIm91dHB1dHMiOlt7Im5hbWUiOiJtb2RlbC5uZWZmIiwic2hhMjU2IjoiYzJmNGNmYWE4OWRjZjY0NzNhZjM3OGQ1ODhiZTE0MmRiMDJmNWViNmYxZjE2OTU0OWQ4NWFmMTZjNDEyNDVmYyIsInNpemUiOjQwMCwiZW5jb2RpbmciOiJpZGVudGl0eSIsInN0b3JlZF9zaXplIjo0MDB9LHsibmFtZSI6ImNvbXBpbGUubG9nIiwic2hhMjU2IjoiNjRlYmQyNjc3MTc4MTBmOTUyNGE1OGM2ZDc3MTViZDk1MDJiM2M5MjM1YjI5MWE3MTA0Mzg5YjM3MmFlZWM0YiIsInNpemUiOjgsImVuY29kaW5nIjoiaWRlbnRpdHkiLCJzdG9yZWRfc2l6ZSI6OH1dLCJjcmVhdGVkIjoiMjAyNi0xMS0zMFQwMDowMDowMFoiLCJjb21waWxlX3NlY29uZHMiOjEyLjUsInBlYWtfbWVtb3J5X2J5dGVzIjpudWxsLCJwcm9kdWNlciI6eyJ2ZXJzaW9uIjoibmVmZi1jYWNoZS90ZXN0IiwiaG9zdCI6Imhvc3QiLCJsYWJlbCI6ImxhYmVsIn0sInNpZ25hdHVyZSI6bnVsbH0=', 'c2f4cfaa89dcf6473af378d588be142db02f5eb6f1f169549d85af16c41245fc', 400, 'identity', 400, 408, 12.5, 1700000000.5, 'label', '', '', 1700000000.5);
INSERT INTO public.failures VALUES (1, 'default', 'graph', 'c2bb60a8139361d3f27217e4c45c46069be373aada39f03c2725f091e2c2abd3', 1796025933711, 'diagnosis', 'no such operator', '', 'h', 1700000000.5);
INSERT INTO public.leases VALUES ('default', 'graph', 'c076e0ace3c3004c9cf69feecbb8f9b45ca506dae09a726052f218399c26d37e', 1796025933552, 'held', '4baa5b0c327c41ebb73ce267806aed088591ebe58e0851f22143aac88f38a310', '{"host": "h", "pid": 1, "rank": null, "label": ""}', 1700000000.5, 1700000000.5);
INSERT INTO public.leases VALUES ('default', 'graph', 'c2bb60a8139361d3f27217e4c45c46069be373aada39f03c2725f091e2c2abd3', 1796025933711, 'failed', 'ba3b8a5d1f5c6bb42d9d50664958f520fc00ec98bb9199cf2c021e3b5342a43c', '{"host": "h", "pid": 1, "rank": null, "label": ""}', 1700000000.5, 1700000000.5);
INSERT INTO public.meta VALUES ('pins', 'default.entry.graph.d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1', 1, 'default', '{"what": "entry", "kind": "graph", "key": "d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1", "keys": [["graph", "d070c2d10e980b12ccdab190494bba72219d8c9d4faea94fdd2fe64d86868de1"]], "by": "bootstrap"}', 1700000000.5);
INSERT INTO public.meta VALUES ('quotas', 'project.default', 1, 'default', '{"max_bytes": null, "max_entries": 20}', 1700000000.5);
INSERT INTO public.tokens VALUES ('6a87499eebbac68617673349b2d323e5a7974f5f71745fff8b5160ecf6243b40', 'bootstrap', 'admin', '*', '*', 1700000000.5, NULL, NULL);
INSERT INTO public.tokens VALUES ('48571dda6fc5fcc5718788bc6bf9af6897bdbf617da46188e6958e9fb549e2a1', 'user', 'admin', '*', '*', 1700000000.5, NULL, NULL);
SELECT pg_catalog.setval('public.failures_id_seq', 1, true);
SELECT pg_catalog.setval('public.revocations_id_seq', 1, false);
SELECT pg_catalog.setval('public.scrub_id_seq', 1, false);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.entries
    ADD CONSTRAINT entries_pkey PRIMARY KEY (project, kind, key);
ALTER TABLE ONLY public.failures
    ADD CONSTRAINT failures_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (project, kind, key);
ALTER TABLE ONLY public.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (table_name, row_id);
ALTER TABLE ONLY public.plans
    ADD CONSTRAINT plans_pkey PRIMARY KEY (project, name);
ALTER TABLE ONLY public.reported
    ADD CONSTRAINT reported_pkey PRIMARY KEY (project, kind, counter);
ALTER TABLE ONLY public.revocations
    ADD CONSTRAINT revocations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.scrub
    ADD CONSTRAINT scrub_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.usage
    ADD CONSTRAINT usage_pkey PRIMARY KEY (project, kind, key);
CREATE INDEX ix_entries_checked ON public.entries USING btree (state, checked, project, kind, key);
CREATE INDEX ix_entries_totals ON public.entries USING btree (project, kind, state, stored_bytes, compile_seconds);
CREATE INDEX ix_failures_key ON public.failures USING btree (project, kind, key, "time");
CREATE INDEX ix_leases_state ON public.leases USING btree (state, expires);
CREATE INDEX ix_meta_project ON public.meta USING btree (table_name, project);
CREATE INDEX ix_revocations_project ON public.revocations USING btree (project, "time");
