"""Small workflow documents for tests on real processes. `bench` is a stub: one effect per operation."""

ASK = """
name: ask
version: 1
object: { type: note, id: "${input.id}" }
lifetime: P30D
input: { type: object, required: [id], properties: { id: { type: string } } }
steps:
  - id: before
    command: bench.make
    with: { unit: "${input.id}", step: 1 }
  - id: approve
    approval: { scope: "content:publish", binds: ["${input.id}"], timeout: PT1H, owner: editors, backup: lead }
    on: { rejected: compensate, timeout: cancel }
  - id: after
    command: bench.make
    with: { unit: "${input.id}", step: 2 }
"""

PUBLISH = """
name: publish
version: 1
object: { type: post, id: "${input.id}" }
lifetime: P1D
input: { type: object, required: [id], properties: { id: { type: string } } }
steps:
  - id: draft
    command: wordpress.create_draft
    with: { title: "Post ${input.id}", content: "<p>${input.id}</p>", slug: "${input.id}" }
  - id: approve
    approval: { scope: "content:publish", binds: ["${steps.draft.content_sha256}"], timeout: P1D, owner: editors }
  - id: publish
    command: wordpress.publish_post
    with: { post_id: "${steps.draft.post_id}", content_sha256: "${steps.draft.content_sha256}" }
"""

WAIT = """
name: wait
version: 1
object: { type: note, id: "${input.id}", concurrency: queue }
lifetime: P30D
input: { type: object, required: [id, run], properties: { id: { type: string }, run: { type: integer } } }
steps:
  - id: before
    command: bench.make
    with: { unit: "${input.id}", step: 1 }
    key: "wait:${input.id}:${input.run}:before"
  - id: word
    wait:
      event: word.given
      match: event.number > 3
      data: { type: object, required: [number], properties: { number: { type: integer } } }
      timeout: P2D
      owner: editors
    on: { timeout: cancel }
  - id: after
    command: bench.post
    with: { number: "${steps.word.data.number}" }
    key: "wait:${input.id}:${input.run}:after"
"""

EFFECTS = {
    "github": """
    command: github.archive_version
    with:
      repository: acme/articles
      branch: "content/${input.id}"
      path: "${input.id}.md"
      content: "# ${input.id}"
      message: "Archive ${input.id}"
      author: { name: Ada, email: ada@example.org }
      authored_at: "2026-11-29T12:00:00Z"
""",
    "database": """
    command: database.record_publication
    with: { business_key: "${input.id}", record: { id: "${input.id}" } }
""",
    "monitoring": """
    command: monitoring.register_check
    with:
      name: "${input.id}"
      url: "https://blog.example/${input.id}/"
      expect: { status: 200 }
      interval_seconds: 60
""",
    "cloudflare": """
    command: cloudflare.purge
    with: { zone_id: "${input.zone_id}", urls: ["${input.site}/${input.id}/"] }
""",
}
"""One effect of each system; `two_steps` makes a document of it."""


def two_steps(system: str) -> str:
    """A document whose second step is one effect of a system, named by the case."""
    return f"""
name: two-steps-{system}
version: 1
object: {{ type: {system}, id: "${{input.id}}" }}
lifetime: P1D
input:
  type: object
  required: [id, site, zone_id]
  properties: {{ id: {{ type: string }}, site: {{ type: string }}, zone_id: {{ type: string }} }}
steps:
  - id: before
    command: bench.make
    with: {{ unit: "${{input.id}}", step: 1 }}
  - id: effect{EFFECTS[system]}"""
