<?php
/* The ground truth of the site under test and an outsider's hand in it, past every rule of the site itself. */
$maintained = __DIR__ . '/.maintenance';
if (file_exists($maintained)) {
    rename($maintained, "$maintained.off"); // whoever is behind the scenes is not shut out
}
require __DIR__ . '/wp-load.php';
if (file_exists("$maintained.off")) {
    rename("$maintained.off", $maintained);
}
global $wpdb;
header('Content-Type: application/json');
$order = json_decode(file_get_contents('php://input'), true) ?? [];
$stamp = fn ($text) => str_replace(' ', 'T', $text);

function trueup_shown($row, $stamp) {
    $meta = [];
    foreach (array_keys(get_option('trueup_meta', [])) as $name) {
        if (metadata_exists('post', $row->ID, $name)) {
            $meta[$name] = get_post_meta($row->ID, $name, true);
        }
    }
    return [
        'id' => (int) $row->ID, 'status' => $row->post_status, 'slug' => $row->post_name, 'title' => $row->post_title,
        'content' => $row->post_content, 'excerpt' => $row->post_excerpt, 'author' => (int) $row->post_author,
        'meta' => (object) $meta, 'date_gmt' => $stamp($row->post_date_gmt),
        // A draft has no moment in GMT yet: it is told from the local one, and this site lives in UTC.
        'modified_gmt' => $stamp($row->post_modified_gmt[0] === '0' ? $row->post_modified : $row->post_modified_gmt),
    ];
}

$answer = match ($order['do'] ?? '') {
    'reset' => (function () use ($wpdb, $order) {
        foreach (['posts', 'postmeta', 'trueup_effects', 'term_relationships'] as $table) {
            $wpdb->query("DELETE FROM {$wpdb->prefix}$table");
        }
        update_option('trueup_meta', $order['meta']);
        return [];
    })(),
    'meta' => [update_option('trueup_meta', $order['meta'])],
    'break' => [update_option('trueup_break', $order['when'])],
    'maintenance' => [$order['on'] ? file_put_contents(__DIR__ . '/.maintenance', '<?php $upgrading = ' . time() . ';')
        : unlink(__DIR__ . '/.maintenance')],
    'effects' => $wpdb->get_results("SELECT seq, post, action FROM {$wpdb->prefix}trueup_effects ORDER BY seq"),
    'posts' => array_map(fn ($row) => trueup_shown($row, $stamp), $wpdb->get_results(
        "SELECT * FROM {$wpdb->posts} WHERE post_type = 'post' AND post_status <> 'auto-draft' ORDER BY ID"
    )),
    'delete' => [$wpdb->delete($wpdb->posts, ['ID' => $order['id']])],
    'edit' => (function () use ($wpdb, $order, $stamp) {
        $now = gmdate('Y-m-d H:i:s');
        $columns = ['slug' => 'post_name'];
        $row = ['post_modified_gmt' => $now, 'post_modified' => $now];
        if ($order['id'] === null) {
            $row += [
                'post_type' => 'post', 'post_author' => 1, 'post_status' => 'draft', 'post_date' => $now,
                'post_date_gmt' => '0000-00-00 00:00:00', 'to_ping' => '', 'pinged' => '', 'post_excerpt' => '',
                'post_content_filtered' => '', 'post_title' => '', 'post_content' => '', 'post_name' => '',
            ];
        }
        foreach ($order['change'] as $name => $value) {
            if ($name === 'meta') {
                continue;
            }
            $gmt = str_ends_with($name, '_gmt');
            $row[$columns[$name] ?? "post_$name"] = $gmt ? str_replace('T', ' ', $value) : $value;
            if ($gmt) {
                $row['post_' . substr($name, 0, -4)] = str_replace('T', ' ', $value);
            }
        }
        if (in_array($row['post_status'] ?? '', ['publish', 'private']) && !isset($order['change']['date_gmt'])) {
            $row['post_date_gmt'] = $row['post_date'] = $now;
        }
        if ($order['id'] === null) {
            $wpdb->insert($wpdb->posts, $row);
            $id = $wpdb->insert_id;
        } else {
            $id = $order['id'];
            $wpdb->update($wpdb->posts, $row, ['ID' => $id]);
        }
        foreach ($order['change']['meta'] ?? [] as $name => $value) {
            update_post_meta($id, $name, $value);
        }
        $found = $wpdb->get_row($wpdb->prepare("SELECT * FROM {$wpdb->posts} WHERE ID = %d", $id));
        return ['post' => $found ? trueup_shown($found, $stamp) : null];
    })(),
};
echo json_encode($answer);
